"""An iterator run ahead on a thread, with its exceptions and its end handed over."""

import collections
import threading
import weakref
from collections.abc import Iterator


class Prefetcher:
    """Yields what `source` yields, up to `depth` items made ahead on a thread.

    An exception of the source is raised by `next` in its place; then, and after the
    end or `close`, `next` raises StopIteration for ever. The thread ends when the
    prefetcher is closed, collected or the interpreter exits.
    """

    def __init__(self, source: Iterator, depth: int):
        self._shared = _Shared(depth)
        thread = threading.Thread(
            target=_work,
            args=(source, self._shared),
            daemon=True,
            name="roxxel-prefetch",
        )
        # runs at collection and at exit, before the interpreter takes threads down
        self._finalizer = weakref.finalize(self, _stop, self._shared, thread)
        thread.start()

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self):
        return self._shared.get()

    def close(self) -> None:
        """Stops and joins the thread; items made ahead are dropped."""
        self._finalizer()


class _Shared:
    """The bounded queue between both sides; knows nothing of either."""

    def __init__(self, depth: int):
        self._items: collections.deque = collections.deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._is_stopped = False
        self._is_finished = False
        self._error: BaseException | None = None

    def put(self, item) -> bool:
        """Waits for room; False when the consumer has gone."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or len(self._items) < self._depth
            )
            if self._is_stopped:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_finished = True
            self._error = error
            self._changed.notify_all()

    def get(self):
        with self._changed:
            self._changed.wait_for(
                lambda: self._items or self._is_finished or self._is_stopped
            )
            if self._is_stopped:
                raise StopIteration
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            error, self._error = self._error, None
            if error is not None:
                raise error
            raise StopIteration

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._items.clear()
            self._changed.notify_all()


def _work(source: Iterator, shared: _Shared) -> None:
    error = None
    try:
        for item in source:
            if not shared.put(item):
                break
    except BaseException as err:  # handed to the consumer, whatever it is
        error = err
    finally:
        shared.finish(error)


def _stop(shared: _Shared, thread: threading.Thread) -> None:
    shared.stop()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join()
