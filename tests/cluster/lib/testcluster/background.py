"""A part of the cluster that a thread plays while a test runs: the kubelets, the provisioner of volumes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

import httpx

from testcluster.api import Api, Refused
from testcluster.kubeconfig import Kubeconfig

ROUND_S: Final = 2.0
"""How long a round watches: each one also looks at everything that exists again."""
_STOP_S: Final = 30.0


class Background(ABC):
    """Rounds of work in a thread, while used as a context manager; a failure of the thread fails the test."""

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.api = Api(kubeconfig)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=_STOP_S)
        self.api.close()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def stopping(self) -> bool:
        """Whether the round in hand should end."""
        return self._stop.is_set()

    @abstractmethod
    def round(self) -> None:
        """Look at what exists, then watch for ROUND_S."""

    def _run(self) -> None:
        try:
            while not self.stopping:
                self.round()
        except (Refused, httpx.HTTPError, ValueError) as error:
            self._failure = error
