"""`shoal version`: what to write into a report."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version")(version)


def version() -> None:
    """Print the versions of shoal and of what runs its models."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import shoal
    from shoal_cli.terminal import results

    results().print(f"shoal {shoal.__version__}")
    results().print(f"Python {platform.python_version()} on {platform.platform()}")
    for package in ("openvino", "grpcio", "tokenizers"):
        try:
            results().print(f"{package} {installed(package)}")
        except PackageNotFoundError:
            results().print(f"{package} is not installed")
