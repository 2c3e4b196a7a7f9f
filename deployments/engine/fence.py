"""The fence: who may give this engine work when ownership of its model moves from one gateway to another.

An owner's epoch comes with every request. The engine remembers the highest it has seen and takes nothing under a lower
one, so an owner that was stopped, missed its successor and goes on cannot place anything here: safety rests on this
comparison, not on clocks. Pure.
"""


class Fence:
    """Remembers the highest epoch. Requests without one (epoch 0) pass only while no owner has shown itself."""

    def __init__(self) -> None:
        self.highest = 0

    def admits(self, epoch: int) -> bool:
        """Whether work under that epoch is taken; a higher one than before shuts out all lower ones from now on."""
        if epoch < self.highest:
            return False
        self.highest = epoch
        return True
