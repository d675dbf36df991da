"""Shares of functions, from collapsed stacks."""

import pytest

from tests.bench import profile
from tests.bench.profile import Share

STACKS = """\
<module> (cli.py);run (services/core/reactor.py);poll (cygrpc.so);sendmsg (libc.so.6) 6
<module> (cli.py);run (services/core/reactor.py);poll (cygrpc.so) 2
<module> (cli.py);answer (services/router/infer_call.py) 1
start_thread (libc.so.6) 1
"""


def test_native_leaves_are_the_innermost_frames() -> None:
    assert profile.native_leaves(STACKS) == [
        Share(frame="sendmsg (libc.so.6)", share=0.6),
        Share(frame="poll (cygrpc.so)", share=0.2),
        Share(frame="answer (services/router/infer_call.py)", share=0.1),
        Share(frame="start_thread (libc.so.6)", share=0.1),
    ]


def test_threads_that_wait_do_not_count() -> None:
    stacks = (
        "run (a.py);Condition.wait (threading.py:331);0x1 (libc.so.6) 7\n"
        "run (a.py);poll (c.so);syscall (libc.so.6) 7\n"
        "run (a.py);poll (c.so);epoll_wait (libc.so.6) 7\n"
        "run (a.py);poll (c.so);sendmsg (libc.so.6) 3\n"
        "run (a.py);sum_up (b.py) 1\n"
    )
    assert profile.native_leaves(stacks) == [
        Share(frame="sendmsg (libc.so.6)", share=0.75),
        Share(frame="sum_up (b.py)", share=0.25),
    ]


def test_functions_without_a_symbol_are_one_for_each_library() -> None:
    assert profile.native_leaves("a (b.py);0x1f (c.so) 3\n0x2e (c.so) 1\n") == [
        Share(frame="(no symbol) (c.so)", share=1.0)
    ]


def test_native_time_counts_for_the_python_function_that_called() -> None:
    assert profile.python_leaves(STACKS) == [
        Share(frame="run (services/core/reactor.py)", share=0.8),
        Share(frame="answer (services/router/infer_call.py)", share=0.1),
        Share(frame="start_thread (libc.so.6)", share=0.1),
    ]


@pytest.mark.parametrize(
    ("frame", "verdict"),
    [
        ("run (a/b.py)", True),
        ("run (a/b.py:17)", True),
        ("poll (grpc/_cython/cygrpc.cpython-311.so)", False),
        ("operator() (x.pyx:3)", False),
        ("0x7f12 (libc.so.6)", False),
    ],
)
def test_a_python_frame_names_a_python_file(frame: str, *, verdict: bool) -> None:
    assert profile.is_python(frame) is verdict
