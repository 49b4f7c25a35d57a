"""Threads that commit together: each call is answered once, whoever works, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from oncelog._native import syncing
from oncelog._native.crew import Crew
from oncelog.base.errors import (
    CoordinatorNotAvailableError,
    KafkaStorageError,
    OncelogError,
    TransactionAbortableError,
)
from oncelog.segment.names import TopicPartition

from .brokers import VerbProducer, opened, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 20


class Question:
    """A call whose answer is its own number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: list[int] = []
        self.gave_up = False

    @property
    def is_answered(self) -> bool:
        return bool(self.answers) or self.gave_up

    def give_up(self) -> None:
        self.gave_up = True


def start(calls: list[Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it waits for ever"


def test_each_call_is_answered_once() -> None:
    crew = Crew()
    sizes = []

    def answer(questions: list[Question]) -> None:
        sizes.append(len(questions))
        for question in questions:
            question.answers.append(question.number)

    questions = [[Question(number) for number in range(200)] for _ in range(8)]

    def ask(mine: list[Question]) -> None:
        for question in mine:
            crew.call(question, answer)
            assert question.answers == [question.number]

    join(start([functools.partial(ask, mine) for mine in questions]))
    assert sum(sizes) == 1600
    assert all(question.answers == [question.number] for mine in questions for question in mine)


GROUPS = 2  # that may be under way at a time


@contextlib.contextmanager
def occupied(crew: Crew, go_on: threading.Event | None = None) -> Iterator[None]:
    """As many groups are under way as may be, so that who calls now has to wait: until the end, or ``go_on``."""
    entered, go_on = threading.Semaphore(0), go_on or threading.Event()

    def hold(questions: list[Question]) -> None:
        entered.release()
        assert go_on.wait(PATIENCE_S)
        for question in questions:
            question.answers.append(question.number)

    threads = []
    try:
        for number in range(GROUPS):
            threads += start([functools.partial(crew.call, Question(number), hold)])
            assert entered.acquire(timeout=PATIENCE_S)
        yield
    finally:
        go_on.set()
        join(threads)


def wait_for_callers(crew: Crew, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(crew) < count:
        assert time.monotonic() < deadline, f"{len(crew)} of {count} wait"
        time.sleep(0.001)


def test_who_comes_while_others_are_under_way_is_answered_together() -> None:
    """Goal: three calls that find as many groups under way as may be make one group, once one of those has ended."""
    crew, groups = Crew(), []

    def answer(questions: list[Question]) -> None:
        groups.append(sorted(question.number for question in questions))
        for question in questions:
            question.answers.append(question.number)

    with occupied(crew):
        calls = [functools.partial(crew.call, Question(number), answer) for number in (7, 8, 9)]
        threads = start(calls)
        wait_for_callers(crew, len(calls))
    join(threads)
    assert groups == [[7, 8, 9]]


def test_all_groups_can_be_used_again_after_many_have_ended() -> None:
    """Goal: whoever ends a group gives its place back, also where somebody was woken to lead and another one came.
    Method: many short calls of many threads, then as many groups as may be have to be under way at a time."""
    crew = Crew()

    def answer(questions: list[Question]) -> None:
        for question in questions:
            question.answers.append(question.number)

    def ask() -> None:
        for number in range(500):
            crew.call(Question(number), answer)

    join(start([ask] * 8))
    assert not len(crew)
    with occupied(crew):  # hangs where a place was lost
        threads = start([lambda: crew.call(Question(0), answer)])
        wait_for_callers(crew, 1)  # never comes where one was won
    join(threads)


def test_who_is_interrupted_while_it_waits_takes_its_call_back() -> None:
    """Goal: nothing is done for somebody who does not hear of it, and the others are answered.
    Method: a signal for the main thread, which waits before another."""
    crew, taken = Crew(), list[int]()

    def answer(questions: list[Question]) -> None:
        taken.extend(question.number for question in questions)
        for question in questions:
            question.answers.append(question.number)

    def interrupt() -> None:
        wait_for_callers(crew, 1)
        threads.extend(start([lambda: crew.call(Question(8), answer)]))
        wait_for_callers(crew, 2)
        signal.pthread_kill(main, signal.SIGINT)

    main, threads = threading.get_ident(), list[threading.Thread]()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with occupied(crew):
            interrupters = start([interrupt])
            with pytest.raises(KeyboardInterrupt):
                crew.call(Question(7), answer)
            join(interrupters)
            assert len(crew) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    join(threads)
    assert taken == [8]


def test_a_handler_of_a_signal_may_call_as_well() -> None:
    """Goal: whoever was woken to lead, and sits in a handler that waits itself, keeps nobody waiting."""
    crew = Crew()
    answers = []

    def answer(questions: list[Question]) -> None:
        for question in questions:
            question.answers.append(question.number)
            answers.append(question.number)

    def interrupt() -> None:
        wait_for_callers(crew, 1)
        signal.pthread_kill(main, signal.SIGUSR1)
        wait_for_callers(crew, 1)
        go_on.set()

    main, go_on = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: crew.call(Question(8), answer))
    try:
        with occupied(crew, go_on):
            helpers = start([interrupt])
            crew.call(Question(7), answer)  # hangs where the handler's call waits for this one
            join(helpers)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(answers) == [7, 8]


class _Garbage:
    """A cycle whose end takes the interpreter away."""

    def __init__(self, ended: threading.Event) -> None:
        self.ended = ended
        self.me = self

    def __del__(self) -> None:
        self.ended.set()
        time.sleep(0.05)


@pytest.mark.parametrize("threshold", range(1, 9))
def test_a_collection_in_the_middle_of_a_call_loses_nobody(threshold: int) -> None:
    """Goal: a finalizer that gives the interpreter away may run at any allocation of a call.
    Method: garbage is collected after so many allocations, and others call while its finalizer sleeps."""
    crew, ended, groups = Crew(), threading.Event(), list[int]()

    def answer(questions: list[Question]) -> None:
        groups.extend(question.number for question in questions)
        time.sleep(0.02)
        for question in questions:
            question.answers.append(question.number)

    def call_later(number: int) -> None:
        assert ended.wait(PATIENCE_S)
        time.sleep(0.01 * number)
        crew.call(Question(number), answer)

    threads = start([functools.partial(call_later, number) for number in (1, 2, 3)])
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        _Garbage(ended)
        gc.set_threshold(threshold)
        gc.enable()
        crew.call(Question(0), answer)
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    join(threads)
    assert sorted(groups) == [0, 1, 2, 3]


def test_an_interrupted_worker_leaves_nobody_waiting() -> None:
    crew = Crew()
    entered, go_on = threading.Event(), threading.Event()
    questions = [Question(number) for number in range(4)]

    def interrupt(taken: list[Question]) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)
        taken[0].answers.append(taken[0].number)
        raise KeyboardInterrupt

    def answer(taken: list[Question]) -> None:
        for question in taken:
            question.answers.append(question.number)

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            crew.call(questions[0], interrupt)

    first = start([work])
    assert entered.wait(PATIENCE_S)
    rest = start([functools.partial(crew.call, question, answer) for question in questions[1:]])
    go_on.set()
    join(first + rest)
    assert all(question.is_answered for question in questions)
    assert not any(question.gave_up for question in questions)


def test_what_an_interrupted_worker_had_taken_is_given_up() -> None:
    crew = Crew()
    question = Question(0)

    def interrupt(_: list[Question]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crew.call(question, interrupt)
    assert question.gave_up
    after = Question(1)
    crew.call(after, lambda taken: taken[0].answers.append(1))
    assert after.answers == [1]  # the turn is free


def producers_of(broker: Any, count: int) -> list[VerbProducer]:
    return [VerbProducer(broker, f"teller-{number}") for number in range(count)]


def test_commits_of_many_threads_are_all_there_and_share_their_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    real = syncing.sync_together

    def counted(descriptors: list[int]) -> list[int]:
        groups.append(len(descriptors))
        return real(descriptors)

    monkeypatch.setattr(syncing, "sync_together", counted)
    with opened(tmp_path, topics={"orders": 8}, durability="fsync") as broker:
        keys = [TopicPartition("orders", number) for number in range(8)]

        def work(producer: VerbProducer, key: TopicPartition) -> None:
            for number in range(60):
                producer.send(key, b"%d" % number)
                producer.end(committed=number % 3 > 0)

        pairs = zip(producers_of(broker, 8), keys, strict=True)
        join(start([functools.partial(work, *pair) for pair in pairs]))
        for key in keys:
            expected = [b"%d" % number for number in range(60) if number % 3]
            assert values_of(broker, key) == expected
    assert max(groups) > 1


def test_a_device_that_fails_for_one_fails_that_commit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: of commits that wait together, one whose data is lost is refused; the others are durable.
    Method: two calls arrive while others are under way, so that they are answered together; the device then refuses the first
    file it is given."""
    real = syncing.sync_together

    def broken(descriptors: list[int]) -> list[int]:
        answers = real(descriptors)
        if len(descriptors) > 1 and not broke:
            broke.append(len(descriptors))
            answers[0] = errno.EIO
        return answers

    broke: list[int] = []
    monkeypatch.setattr(syncing, "sync_together", broken)
    with opened(tmp_path, topics={"orders": 2}, durability="fsync") as broker:
        keys = [TopicPartition("orders", number) for number in range(2)]
        producers = producers_of(broker, 2)
        for producer, key in zip(producers, keys, strict=True):
            producer.send(key, b"a")
        errors: list[Exception] = []

        def commit(producer: VerbProducer) -> None:
            try:
                producer.commit()
            except (TransactionAbortableError, CoordinatorNotAvailableError) as error:
                errors.append(error)

        with occupied(broker.crew):
            threads = start([functools.partial(commit, producer) for producer in producers])
            wait_for_callers(broker.crew, len(producers))
        join(threads)
        assert broke == [2]
        assert [type(error) for error in errors] == [TransactionAbortableError]
        assert sum(broker.partition(key).is_offline for key in keys) == 1
        (sound,) = (key for key in keys if not broker.partition(key).is_offline)
        assert values_of(broker, sound) == [b"a"]


def test_a_partition_that_is_offline_fails_its_own_commit_alone(tmp_path: Path) -> None:
    """Goal: of three commits that are ended together, one writes to a partition whose device has failed before."""
    with opened(tmp_path, topics={"orders": 3}, durability="fsync") as broker:
        keys = [TopicPartition("orders", number) for number in range(3)]
        producers = producers_of(broker, 3)
        for producer, key in zip(producers, keys, strict=True):
            producer.send(key, b"a")
        broker.partition(keys[0])._go_offline(OSError(errno.EIO, "lost"))
        outcomes: dict[int, Exception | None] = {}

        def commit(number: int) -> None:
            outcomes[number] = None
            try:
                producers[number].commit()
            except OncelogError as error:
                outcomes[number] = error

        with occupied(broker.crew):
            threads = []
            for number in (1, 0, 2):  # the first leads
                threads += start([functools.partial(commit, number)])
                wait_for_callers(broker.crew, len(threads))
        join(threads)
        assert isinstance(outcomes[0], TransactionAbortableError)
        assert outcomes[1] is outcomes[2] is None
        assert [values_of(broker, key) for key in keys[1:]] == [[b"a"], [b"a"]]


def test_what_the_device_told_somebody_else_is_not_taken_for_durable(tmp_path: Path) -> None:
    """Goal: a device says once what it has lost. Whoever syncs under the lock of a partition may hear it, and a sync of
    the same file that is under way hears that all is well."""
    with opened(tmp_path, topics={"orders": 1}, durability="fsync") as broker:
        (producer,) = producers_of(broker, 1)
        key = TopicPartition("orders", 0)
        producer.send(key, b"a")
        partition = broker.partition(key)
        end = partition.log_end_offset
        begun = partition.begin_sync(end)
        assert begun is not None
        partition._go_offline(OSError(errno.EIO, "lost"))
        assert syncing.sync_together(begun[1]) == [0]
        partition.end_sync(begun[0], 0, begun[2])
        partition.give_up_sync()
        assert partition._commits.end < end
        with pytest.raises(KafkaStorageError):
            partition.sync_to(end)
