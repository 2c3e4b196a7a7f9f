from deployments.engine.root_cause import root_cause

LOG = """\
INFO 11-21 16:51:20 [utils.py:233] non-default args: {}
(EngineCore pid=123) INFO 11-21 16:51:31 [core.py:105] Initializing a V1 LLM engine
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] EngineCore failed to start.
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] Traceback (most recent call last):
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099]   File "kv_cache_utils.py", line 1, in _check_enough_kv_cache_memory
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099]     raise ValueError(
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] ValueError: To serve at least one request with the models's max seq len, more is needed.
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cores_own_error_is_found() -> None:
    assert root_cause(LOG) == "ValueError: To serve at least one request with the models's max seq len, more is needed."


def test_of_several_the_last_counts() -> None:
    assert root_cause(LOG + "(EngineCore pid=124) ERROR [core.py:1] torch.OutOfMemoryError: no room\n") == "torch.OutOfMemoryError: no room"


def test_where_the_core_said_nothing_nothing_is_found() -> None:
    assert root_cause("RuntimeError: Engine core initialization failed.\n(EngineCore pid=1) INFO all is well\n") is None
