"""pytest-vllm-slo: gate vLLM upgrades and scheduler settings on TTFT, TPOT and throughput."""
