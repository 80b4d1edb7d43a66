"""Names of the environment variables through which the padding worker is told its part."""

# Not VLLM_*: vLLM warns about variables of its own prefix that it does not know.
DEVICE = "SLO_WORKER_DEVICE"
MODEL = "SLO_WORKER_MODEL"
ACCOUNT = "SLO_WORKER_ACCOUNT"
STEPS = "SLO_WORKER_STEPS"
