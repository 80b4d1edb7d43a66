from vllm import behaviour


class current_platform:  # noqa: N801 (vLLM's own name)
    device_type = behaviour["device_type"]

    @staticmethod
    def get_device_name():
        return behaviour["device_name"]
