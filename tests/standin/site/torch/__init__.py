__version__ = "2.13.0"


class version:  # noqa: N801 (torch's own name)
    cuda = "13.0"
