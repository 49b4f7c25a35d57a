"""Threads that commit together: each call is answered once, whoever works, and nobody waits for ever."""

from __future__ import annotations

import errno
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncelog._native import syncing
from oncelog._native.crew import Crew
from oncelog.base.errors import CoordinatorNotAvailableError, TransactionAbortableError
from oncelog.segment.names import TopicPartition

from .brokers import VerbProducer, opened, values_of

if TYPE_CHECKING:
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


def test_who_comes_while_one_works_is_answered_together() -> None:
    """Goal: three calls that arrive during a turn make one group in the next."""
    crew = Crew()
    entered, go_on, groups = threading.Event(), threading.Event(), []

    def answer(questions: list[Question]) -> None:
        groups.append(sorted(question.number for question in questions))
        entered.set()
        assert go_on.wait(PATIENCE_S)
        for question in questions:
            question.answers.append(question.number)

    first = start([lambda: crew.call(Question(0), answer)])
    assert entered.wait(PATIENCE_S)
    rest = start([functools.partial(crew.call, Question(number), answer) for number in (1, 2, 3)])
    while len(crew) < 3:
        pass
    go_on.set()
    join(first + rest)
    assert groups == [[0], [1, 2, 3]]


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
    Method: two calls arrive while a third works, so that they are answered together; the device then refuses the first
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

        def hold(taken: list[Question]) -> None:
            threads.extend(start([functools.partial(commit, producer) for producer in producers]))
            while len(broker.crew) < 2:
                pass
            taken[0].answers.append(0)

        threads: list[threading.Thread] = []
        broker.crew.call(Question(0), hold)
        join(threads)
        assert broke == [2]
        assert [type(error) for error in errors] == [TransactionAbortableError]
        assert sum(broker.partition(key).is_offline for key in keys) == 1
        (sound,) = (key for key in keys if not broker.partition(key).is_offline)
        assert values_of(broker, sound) == [b"a"]
