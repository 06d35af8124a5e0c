"""bps doctor on RDMA: the kernel's files are made up here; with devices it runs in the guest (tests/rdma)."""

import json
import sys
from pathlib import Path

import pytest
from byteps.tools import doctor_rdma
from byteps.tools.doctor_findings import OK, PROBLEM, WARNING, JobSize

SIZE = JobSize(workers=8, servers=4, shards=2)
UNLIMITED = (-1, -1)
MAPPED = "0000:0000:0000:0000:0000:ffff:0a4d:0001"  # 10.77.0.1
LINK_LOCAL = "fe80:0000:0000:0000:0000:77ff:fe00:0001"


def make_port(system: Path, device="mlx5_0", state="4: ACTIVE", link="Ethernet", mtu=9000, interface="eth2", gids=()):
    port = system / f"class/infiniband/{device}/ports/1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    for name, text in (("state", state), ("link_layer", link), ("rate", "100 Gb/sec (4X EDR)")):
        (port / name).write_text(text + "\n")
    entries = gids or ((LINK_LOCAL, "IB/RoCE v1"), (MAPPED, "IB/RoCE v1"), (MAPPED, "RoCE v2"))
    for index, (gid, kind) in enumerate([*entries, ("0000:" * 7 + "0000", "")]):
        (port / f"gids/{index}").write_text(gid + "\n")
        if kind:
            (port / f"gid_attrs/types/{index}").write_text(kind + "\n")
            (port / f"gid_attrs/ndevs/{index}").write_text(interface + "\n")
    if interface:
        (system / "class/net" / interface).mkdir(parents=True, exist_ok=True)
        (system / "class/net" / interface / "mtu").write_text(f"{mtu}\n")


def judge(tmp_path, environ=(), own="10.77.0.1", limits=UNLIMITED, **changes):
    """The findings by check, where libibverbs knows all devices unless `changes` say otherwise."""
    said = doctor_rdma.look({"DMLC_ENABLE_RDMA": "ibverbs", **dict(environ)}, str(tmp_path), str(tmp_path / "dev"))
    said.update({"library": "", "known": [port["device"] for port in said["ports"]], "may_lock": False, **changes})
    json.dumps(said)  # it travels
    facts = {"rdma": said, "locked_bytes": limits, "settings": {"own_address": own}, "interfaces": []}
    found = doctor_rdma.findings("a", facts, {"server": 1, "worker": 1}, SIZE)
    assert all(each.fix for each in found if each.level != OK), found
    return {each.check: each for each in found}


def test_a_good_machine_is_ok_and_what_was_found_is_told(tmp_path):
    make_port(tmp_path)
    found = judge(tmp_path)
    assert {each.level for each in found.values()} == {OK}, found
    assert "mlx5_0 port 1 (ACTIVE, Ethernet, 100 Gb/sec (4X EDR), eth2)" in found["RDMA"].text
    assert found["RDMA address"].text == "10.77.0.1 is mlx5_0's RoCE v2 GID 2"
    assert found["RDMA MTU"].text == "eth2 has 9000: packets of 4096 bytes"
    assert "tells nothing of PFC and ECN; the switches cannot be seen" in found["RDMA network"].text
    assert "safe" in found["RDMA and fork"].text


@pytest.mark.parametrize(
    "policy, level", [("ibverbs", PROBLEM), ("1", PROBLEM), ("auto", OK), ("ucx", OK), ("0", OK), ("zmq", OK), ("", OK)]
)
def test_a_machine_without_a_device_is_a_problem_only_where_rdma_is_required(tmp_path, policy, level):
    finding = judge(tmp_path, {"DMLC_ENABLE_RDMA": policy})["RDMA"]
    assert finding.level == level and "no RDMA device" in finding.text


def test_when_rdma_is_off_a_device_is_told_and_how_to_use_it(tmp_path):
    make_port(tmp_path)
    found = judge(tmp_path, {"DMLC_ENABLE_RDMA": "0"})
    assert set(found) == {"RDMA", "locked memory"}
    assert "DMLC_ENABLE_RDMA=auto would use mlx5_0 port 1" in found["RDMA"].text


@pytest.mark.parametrize(
    "changes, text, fix",
    [
        ({"library": "libibverbs.so.1: cannot open shared object file"}, "cannot open shared", "apt-get install"),
        ({"known": []}, "no driver for mlx5_0", "ibverbs-providers"),
        ({"closed": ["/dev/infiniband/uverbs0"]}, "may not use /dev/infiniband/uverbs0", "chmod 666"),
        ({"only": ["mlx5_7"]}, "names mlx5_7; there is mlx5_0", "BYTEPS_RDMA_DEVICE=mlx5_0"),
    ],
)
def test_a_device_that_cannot_be_used_says_why(tmp_path, changes, text, fix):
    make_port(tmp_path)
    finding = judge(tmp_path, **changes)["RDMA"]
    assert finding.level == PROBLEM and text in finding.text and fix in finding.fix
    assert judge(tmp_path, {"DMLC_ENABLE_RDMA": "auto"}, **changes)["RDMA"].level == WARNING


def test_a_port_that_is_down_is_a_problem_unless_another_is_up(tmp_path):
    make_port(tmp_path, state="1: DOWN")
    down = judge(tmp_path)["RDMA"]
    assert down.level == PROBLEM and "(DOWN, " in down.text and down.fix.startswith("ip link set eth2 up")
    make_port(tmp_path, device="mlx5_1", interface="eth3")
    said = doctor_rdma.look({"DMLC_ENABLE_RDMA": "ibverbs"}, str(tmp_path))
    said.update({"library": "", "known": ["mlx5_0", "mlx5_1"]})
    assert [each.level for each in doctor_rdma.devices("a", said)] == [WARNING, OK]


def test_an_address_that_is_no_gid_is_found_before_a_connection_fails(tmp_path):
    make_port(tmp_path)
    wrong = judge(tmp_path, own="192.0.2.1")["RDMA address"]
    assert wrong.level == PROBLEM and "no RoCE v2 GID of mlx5_0 is 192.0.2.1" in wrong.text
    assert wrong.fix.startswith("export DMLC_INTERFACE=eth2")
    make_port(tmp_path, device="old_0", interface="eth4", gids=[(MAPPED, "IB/RoCE v1")])
    assert judge(tmp_path, {"BYTEPS_RDMA_DEVICE": "old_0"})["RDMA address"].level == PROBLEM, "version 1 is not routed"


def test_an_index_that_was_chosen_must_be_there(tmp_path):
    make_port(tmp_path)
    chosen = judge(tmp_path, {"BYTEPS_RDMA_GID_INDEX": "2"})["RDMA address"]
    assert chosen.level == OK and "index 2 as told" in chosen.text
    assert judge(tmp_path, {"BYTEPS_RDMA_GID_INDEX": "9"})["RDMA address"].level == PROBLEM


def test_infiniband_needs_an_ip_interface_and_has_no_lossy_network(tmp_path):
    make_port(tmp_path, link="InfiniBand", interface="", gids=[(LINK_LOCAL, "IB/RoCE v1")])
    alone = judge(tmp_path)
    assert alone["RDMA address"].level == PROBLEM and "IPoIB" in alone["RDMA address"].text
    (tmp_path / "class/net/ib0/device/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "class/net/ib0/dev_port").write_text("0\n")
    found = judge(tmp_path)
    assert found["RDMA address"].text == "mlx5_0, by the addresses of ib0"
    assert "RDMA MTU" not in found and "RDMA network" not in found


@pytest.mark.parametrize("mtu, level, size", [(1500, WARNING, 1024), (2300, WARNING, 2048), (4200, OK, 4096)])
def test_small_packets_are_told_with_the_mtu_that_would_help(tmp_path, mtu, level, size):
    make_port(tmp_path, mtu=mtu)
    finding = judge(tmp_path)["RDMA MTU"]
    assert finding.level == level and f"packets of {size} bytes" in finding.text


@pytest.mark.parametrize("pfc, level, text", [([], WARNING, "PFC on priorities none"), ([3], OK, "priorities 3, ECN")])
def test_flow_control_of_the_card_is_told_where_its_driver_does(tmp_path, monkeypatch, pfc, level, text):
    make_port(tmp_path)
    enabled = tmp_path / "class/net/eth2/ecn/roce_np/enable"
    enabled.mkdir(parents=True)
    for priority in range(8):
        (enabled / str(priority)).write_text(f"{int(priority == 3)}\n")
    (tmp_path / "class/net/eth2/qos").mkdir()
    (tmp_path / "class/net/eth2/qos/trust").write_text("dscp\n")
    folder = tmp_path / "bin"
    folder.mkdir()
    states = " ".join(f"{priority}:{'on' if priority in pfc else 'off'}" for priority in range(8))
    (folder / "dcb").write_text(f"#!/bin/sh\n[ \"$*\" = 'pfc show dev eth2 prio-pfc' ] && echo 'prio-pfc {states}'\n")
    (folder / "dcb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    finding = judge(tmp_path)["RDMA network"]
    assert finding.level == level and text in finding.text and "ECN on priorities 3, priorities by DSCP" in finding.text


def test_a_small_limit_on_locked_memory_is_a_problem_with_the_remedy(tmp_path):
    make_port(tmp_path)
    small = judge(tmp_path, limits=(8 << 20, 8 << 20))["locked memory"]
    assert small.level == PROBLEM and "8192 KiB; RDMA needs 0.06 GiB for the rings of 16 connections" in small.text
    assert "memlock unlimited" in small.fix and "IPC_LOCK" in small.fix
    assert judge(tmp_path, limits=(128 << 20, 128 << 20))["locked memory"].level == OK
    assert judge(tmp_path, limits=(8 << 20, -1))["locked memory"].fix.startswith("ulimit -l unlimited")
    assert judge(tmp_path, limits=(8 << 20, 8 << 20), may_lock=True)["locked memory"].level == OK
    off = judge(tmp_path, {"DMLC_ENABLE_RDMA": "0"}, limits=(8 << 20, 8 << 20))["locked memory"]
    assert off.level == OK and "TCP needs none" in off.text


def test_a_child_is_safe_on_old_kernels_by_other_means():
    assert "copies registered memory" in doctor_rdma.fork("a", "6.1.0-56-amd64").text
    assert "ibv_fork_init" in doctor_rdma.fork("a", "4.18.0-553.el8").text


def test_bps_doctor_tells_a_job_that_wants_rdma_here(place):
    command = [sys.executable, "-m", "byteps.tools.bps", "doctor", "--json"]
    process = place.start(command, {"DMLC_ENABLE_RDMA": "auto", "BYTEPS_RDMA_RX_DEPTH": "1"})
    out, err = process.communicate(timeout=60)
    findings = json.loads(out)
    assert any(each["check"] == "RDMA" for each in findings), err
    assert any("BYTEPS_RDMA_RX_DEPTH=1 is taken for 32" in each["text"] for each in findings), findings
