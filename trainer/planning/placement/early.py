"""Messages that may be there before a rank asks for them. Pure.

Sending waits for nobody, and what is sent travels while its receiver computes. How far the others can be
ahead of a rank follows from the task lists: they stop where they need what this rank has not sent yet.
"""

from __future__ import annotations

from trainer.planning.placement.tasks import Message, Receive, Send, TaskLists

Bundle = tuple[Message, ...]


def early(lists: TaskLists, rank: int) -> dict[Bundle, int]:
    """Return for each bundle that a rank receives the number of its own task at which it may be there.

    Args:
        lists: of all ranks; they can be carried out.
        rank: whose.
    """
    position = {other: 0 for other in lists if other != rank}
    sent: set[Bundle] = set()
    found: dict[Bundle, int] = {}

    def let_others_go_on(now: int) -> None:
        moving = True
        while moving:
            moving = False
            for other, at in position.items():
                for task in lists[other][at:]:
                    if isinstance(task, Receive) and task.messages not in sent:
                        break
                    if isinstance(task, Send):
                        sent.add(task.messages)
                        if task.messages[0].target == rank:
                            found[task.messages] = now
                    position[other] += 1
                    moving = True

    let_others_go_on(0)
    for now, task in enumerate(lists[rank]):
        if isinstance(task, Send):
            sent.add(task.messages)
            let_others_go_on(now + 1)
    return found
