"""A release: tag, migrate, deploy, then switch the traffic. A failed check takes all of it back; two releases never overlap.

    pip install amends
    python examples/release_pipeline.py

The cluster is a file in the folder `release-data`, beside the ledger.
"""

import json
import threading
from pathlib import Path
from typing import Any

from amends import Runtime, tool
from amends.errors import Locked

DATA = Path("release-data")
BROKEN = {"2.1"}  # versions that start and do not answer


# ---- the cluster -------------------------------------------------------------------------------------------------


def cluster() -> dict[str, Any]:
    path = DATA / "cluster.json"
    if not path.exists():
        return {"tags": [], "schema": 1, "running": "1.0", "traffic": "1.0"}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def change(**fields: Any) -> None:
    (DATA / "cluster.json").write_text(json.dumps({**cluster(), **fields}), encoding="utf-8")


# ---- the tools ---------------------------------------------------------------------------------------------------


@tool(key="version")
def tag(version: str) -> str:
    change(tags=[*cluster()["tags"], version])
    return version


@tag.compensate
def delete_tag(result: str) -> None:
    change(tags=[one for one in cluster()["tags"] if one != result])
    print("  undone: tag", result)


# `before` reads what is there, under the lock, before the tool changes it. The compensation puts exactly that back.
@tool(key="version", locks=lambda call: ["production"], on_lock="raise")
def migrate(version: str, to: int) -> int:
    change(schema=to)
    return to


@migrate.before
def schema_now() -> int:
    schema: int = cluster()["schema"]
    return schema


@migrate.compensate
def migrate_back(before: int) -> None:
    change(schema=before)
    print("  undone: schema is", before, "again")


@tool(key="version", locks=lambda call: ["production"], on_lock="raise")
def deploy(version: str) -> str:
    change(running=version)
    return version


@deploy.before
def running_now() -> str:
    running: str = cluster()["running"]
    return running


@deploy.compensate
def deploy_back(before: str) -> None:
    change(running=before)
    print("  undone:", before, "runs again")


@tool(kind="read")
def healthy(version: str) -> bool:
    return cluster()["running"] == version and version not in BROKEN


@tool(kind="pivot", key="version", after=["deploy"])
def switch_traffic(version: str) -> str:
    """Send the customers to the new version: from here on the release only goes forward."""
    change(traffic=version)
    return version


@tool(kind="retriable", key="version", idempotent=True)
def announce(version: str) -> None:
    (DATA / f"announced-{version}").touch()


# ---- releases ----------------------------------------------------------------------------------------------------


def release(rt: Runtime, version: str, *, schema: int) -> None:
    try:
        with rt.run(f"release-{version}"):
            tag(version=version)
            announce(version=version)  # staged: it starts after the pivot, or never
            migrate(version=version, to=schema)
            deploy(version=version)
            if not healthy(version=version):
                raise RuntimeError(f"{version} does not answer")
            switch_traffic(version=version)
    except (RuntimeError, Locked) as error:
        print("  failed:", error)
    print("  cluster:", cluster(), "| announced:", (DATA / f"announced-{version}").exists())


def another_process(rt: Runtime) -> None:
    """Begin a release while another one is at work, as a colleague on another machine would."""
    thread = threading.Thread(target=release, args=(rt, "2.3"), kwargs={"schema": 4})
    thread.start()
    thread.join()


def main() -> None:
    DATA.mkdir(exist_ok=True)
    tools = [tag, migrate, deploy, healthy, switch_traffic, announce]
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=tools) as rt:
        print("1. A release that works.")
        release(rt, "2.0", schema=2)
        print("2. One that does not answer: everything is put back as it was.")
        release(rt, "2.1", schema=3)
        print("3. One that begins while another is at work: it changes nothing.")
        with rt.run("release-2.2"):
            migrate(version="2.2", to=3)
            if cluster()["traffic"] != "2.2":  # it was released the last time that this program ran
                another_process(rt)
            deploy(version="2.2")
            switch_traffic(version="2.2")
        print("  cluster:", cluster())


if __name__ == "__main__":
    main()
