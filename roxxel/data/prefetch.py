"""An iterator run ahead on a thread, with its exceptions and its end handed over."""

import collections
import threading
import time
import weakref
from collections.abc import Iterator

# What a thread must hide of every item to be worth it: waking it, taking the item over
# and the two getting in each other's way costs a tenth of that, and more on few cores.
_WORTH_SECS = 2e-3


class Prefetcher:
    """Yields what `source` yields, up to `depth` items made ahead on a thread.

    The thread makes items while the consumer is busy with other things, where both take
    their time: rows from a disk, say, while a model computes. Else the consumer makes
    them itself when it asks, at no more than the cost of a lock: batches from the page
    cache, or a consumer that does nothing in between.

    An exception of the source is raised by `next` in its place; then, and after the
    end or `close`, `next` raises StopIteration for ever. The thread ends when the
    prefetcher is closed, collected or the interpreter exits.
    """

    def __init__(self, source: Iterator, depth: int):
        self._shared = _Shared(source, depth)
        thread = threading.Thread(
            target=_work, args=(self._shared,), daemon=True, name="roxxel-prefetch"
        )
        # runs at collection and at exit, before the interpreter takes threads down
        self._finalizer = weakref.finalize(self, _stop, self._shared, thread)
        thread.start()

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self):
        try:
            return self._shared.get()
        except BaseException:  # the end too
            self.close()
            raise

    def close(self) -> None:
        """Stops and joins the thread; items made ahead are dropped."""
        self._finalizer()


class _Shared:
    """The source and the items made ahead; whoever holds `making` advances it."""

    def __init__(self, source: Iterator, depth: int):
        self._source = source
        self._depth = depth
        self._making = threading.Lock()
        self._items: collections.deque = collections.deque()
        self._changed = threading.Condition()
        self._is_wanted = True  # that the thread works
        self._is_stopped = False
        self._is_over = False  # stopped, or the source has ended
        self._error: BaseException | None = None
        self._left_at = 0.0  # when the consumer went away with an item
        self._took = 0.0  # seconds to make the last item

    def make_ahead(self) -> bool:
        """Makes one item when there is room; False when no more will be needed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._has_room)
        with self._making:
            if self._is_over:
                return False
            if not self._has_room:  # the consumer was faster
                return True
            item, is_there = self._advance()
            if is_there:
                self._items.append(item)
            return is_there

    def get(self):
        """The next item, made here when none was made ahead."""
        gap = time.perf_counter() - self._left_at
        self._is_wanted = min(gap, self._took) > _WORTH_SECS
        while True:
            if self._items or self._is_over:
                with self._changed:
                    if self._items or self._is_over:
                        return self._take()
            with self._making:  # waits for the item that the thread is making
                if self._items or self._is_over:
                    continue
                item, is_there = self._advance()
            if is_there:
                return self._leave(item)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = self._is_over = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def _has_room(self) -> bool:
        return self._is_wanted and len(self._items) < self._depth

    def _advance(self) -> tuple[object, bool]:
        """The next item of the source and whether there is one; held: `making`."""
        error = None
        begin = time.perf_counter()
        try:
            item = next(self._source)
            self._took = time.perf_counter() - begin
            return item, True
        except StopIteration:
            pass
        except BaseException as err:  # handed to the consumer, whatever it is
            error = err
        with self._changed:
            self._is_over = True
            self._error = error
            self._changed.notify_all()
        return None, False

    def _take(self):
        """An item made ahead, or the end; held: `changed`."""
        if self._items and not self._is_stopped:
            return self._leave(self._items.popleft())
        error, self._error = self._error, None
        if error is not None and not self._is_stopped:
            raise error
        raise StopIteration

    def _leave(self, item):
        if self._has_room:
            with self._changed:
                self._changed.notify_all()
        self._left_at = time.perf_counter()
        return item


def _work(shared: _Shared) -> None:
    while shared.make_ahead():
        pass


def _stop(shared: _Shared, thread: threading.Thread) -> None:
    shared.stop()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join()
