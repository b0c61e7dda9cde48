"""How many requests are where, by service class: what a snapshot shows."""

from collections.abc import Mapping

from headway.core.request import ClassCounts
from headway.core.types import ServiceClass, State
from headway.core.world import World


def count_classes(world: World) -> Mapping[ServiceClass, ClassCounts]:
    """Live requests by class and place."""
    running, paused, swapped, waiting = (dict.fromkeys(ServiceClass, 0) for _ in range(4))
    latest = world.latest_steps
    for sequence in world.residents.values():
        (running if sequence.last_step in latest else paused)[sequence.service_class] += 1
    for queue in world.queues.values():
        for sequence in queue.resumed():
            gone = swapped if sequence.state is State.SWAPPED else waiting
            gone[sequence.service_class] += 1
        for service_class, fresh in queue.fresh_by_class().items():
            waiting[service_class] += fresh
    for children in world.held.values():
        for child in children:
            waiting[child.service_class] += 1
    return {c: ClassCounts(waiting[c], running[c], paused[c], swapped[c]) for c in ServiceClass}
