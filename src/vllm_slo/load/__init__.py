from vllm_slo.load.stream import record_from_reads

__all__ = ["record_from_reads"]
