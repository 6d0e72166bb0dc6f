//! Machines that do not exist, and this one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ccl_plan::topology::{Distance, Kind, Node, Router, Vendor, Vertex};
use tempfile::TempDir;

use super::*;

const EIGHT_GPUS: &str = include_str!("../../../../../docs/figures/eight-gpus.xml");

fn names(topology: &Topology, vertices: impl Iterator<Item = Vertex>) -> Vec<String> {
    vertices.map(|vertex| topology.component(vertex).name.clone()).collect()
}

fn width(topology: &Topology, from: Vertex, to: Vertex) -> Option<(Distance, f64)> {
    let way = topology.way(&mut Router::new(topology), from, to);
    way.map(|(distance, path)| (distance, path.gb_per_s))
}

/// A sysfs and procfs of our own making.
struct Fake {
    folder: TempDir,
}

impl Fake {
    fn new() -> Fake {
        Fake { folder: tempfile::tempdir().unwrap() }
    }

    fn system(&self) -> System {
        System { sys: self.folder.path().join("sys"), proc: self.folder.path().join("proc") }
    }

    fn write(&self, path: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = self.folder.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
        folder
    }

    /// A PCI device, the last of `way`, with its link.
    fn pci(&self, way: &[&str], class: &str, speed: &str, numa: &str) -> PathBuf {
        let files = [
            ("class", class),
            ("vendor", if class.starts_with("0x03") { "0x10de" } else { "0x15b3" }),
            ("device", "0x20b0"),
            ("max_link_speed", speed),
            ("max_link_width", "16"),
            ("numa_node", numa),
        ];
        let device = self.write(&format!("sys/devices/pci0000:00/{}", way.join("/")), &files);
        self.link(&device, &format!("sys/bus/pci/devices/{}", way[way.len() - 1]));
        device
    }

    fn link(&self, target: &Path, path: &str) {
        let link = self.folder.path().join(path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(target, link).unwrap();
    }

    fn interface(&self, name: &str, device: &Path, state: &str, speed: &str) {
        let path = format!("sys/class/net/{name}");
        self.write(&path, &[("operstate", state), ("speed", speed)]);
        self.link(device, &format!("{path}/device"));
    }
}

/// Two NUMA domains; at the second a switch with two GPUs and an InfiniBand adapter.
fn server() -> Fake {
    let fake = Fake::new();
    for (numa, mask) in [("0", "0000000f"), ("1", "000000f0")] {
        fake.write(&format!("sys/devices/system/node/node{numa}"), &[("cpumap", mask)]);
    }
    let info = "vendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\nmodel name\t: some";
    fake.write("proc", &[("cpuinfo", info)]);
    let (port, up) = ("0000:00:01.0", "0000:01:00.0");
    for way in [&[port][..], &[port, up], &[port, up, "0000:02:00.0"], &[port, up, "0000:02:01.0"]] {
        fake.pci(way, "0x060400", "32.0 GT/s PCIe", "1");
    }
    fake.pci(&[port, up, "0000:02:00.0", "0000:03:00.0"], "0x030200", "16.0 GT/s PCIe", "1");
    fake.pci(&[port, up, "0000:02:01.0", "0000:04:00.0"], "0x030200", "64.0 GT/s PCIe", "1");
    let model = "Model: \t\t NVIDIA H100\nIRQ: 5";
    fake.write("proc/driver/nvidia/gpus/0000:03:00.0", &[("information", model)]);
    let adapter = fake.pci(&[port, up, "0000:02:02.0", "0000:05:00.0"], "0x020700", "16.0 GT/s PCIe", "1");
    let port = [("state", "4: ACTIVE"), ("rate", "200 Gb/sec (4X HDR)")];
    fake.write("sys/class/infiniband/mlx5_0", &[("node_guid", "0c42:a103:00b1:0003")]);
    fake.write("sys/class/infiniband/mlx5_0/ports/1", &port);
    fake.link(&adapter, "sys/class/infiniband/mlx5_0/device");
    fake.interface("ib0", &adapter, "up", "200000");
    let onboard = fake.pci(&["0000:00:03.0"], "0x020000", "8.0 GT/s PCIe", "-1");
    fs::create_dir(onboard.join("virtio0")).unwrap();
    fake.interface("eth0", &onboard.join("virtio0"), "up", "-1");
    fake.interface("eth1", &onboard, "down", "1000");
    fake.write("sys/class/net/lo", &[("operstate", "unknown")]);
    // The display of a service processor is no GPU.
    let display = fake.pci(&["0000:00:04.0"], "0x030000", "", "-1");
    fs::write(display.join("vendor"), "0x1a03\n").unwrap();
    fake
}

#[test]
fn a_server_is_detected() {
    let fake = server();
    let topology = detect(&fake.system());
    let (cpus, gpus): (Vec<_>, Vec<_>) =
        (topology.cpus(Node(0)).collect(), topology.devices(Node(0)).collect());
    let nics: Vec<_> = topology.nics(Node(0)).collect();
    assert_eq!((cpus.len(), gpus.len(), topology.seats()), (2, 2, &gpus[..]));
    assert_eq!(names(&topology, gpus.iter().copied()), ["NVIDIA H100", ""]);
    assert_eq!(names(&topology, nics.iter().copied()), ["mlx5_0", "eth0"]);
    let Kind::Cpu(cpu) = &topology.component(cpus[1]).kind else { panic!() };
    assert_eq!((cpu.numa, &cpu.affinity[..], cpu.vendor, cpu.model), (1, "000000f0", Vendor::Amd, 49));
    // The slower end of a link counts: the card's 16 GT/s, and the port's 32.
    assert_eq!(width(&topology, gpus[0], gpus[1]), Some((Distance::Pix, 24.0)));
    assert_eq!(width(&topology, gpus[1], cpus[1]), Some((Distance::Phb, 48.0)));
    assert_eq!(width(&topology, gpus[1], nics[0]), Some((Distance::Pix, 24.0)));
    assert_eq!(width(&topology, gpus[1], cpus[0]), Some((Distance::Sys, 16.0)));
    assert_eq!(width(&topology, nics[1], cpus[0]), Some((Distance::Phb, 12.0)));
    let Kind::Nic(nic) = &topology.component(nics[0]).kind else { panic!() };
    assert_eq!((nic.device, nic.port, nic.speed_mbit_per_s), (0, 1, 200_000));
    assert_eq!(nic.guid, 0x0c42_a103_00b1_0003);
    // It is written as what it is, but for names that the format has no place for.
    let again = xml::read(&xml::write(&topology)).unwrap();
    assert_eq!(again.vertices().len(), topology.vertices().len());
    assert_eq!(width(&again, gpus[1], nics[0]), Some((Distance::Pix, 24.0)));
}

#[test]
fn nothing_at_all_is_one_cpu() {
    let topology = detect(&Fake::new().system());
    assert_eq!((topology.vertices().len(), topology.seats()), (1, &[Vertex(0)][..]));
    assert_eq!(processors(Path::new("nowhere")), []);
}

#[test]
fn processors_know_their_caches_and_sockets() {
    let fake = Fake::new();
    for (cpu, package) in [(0, "0"), (1, "0"), (10, "1")] {
        let own = fake.write(
            &format!("sys/devices/system/cpu/cpu{cpu}"),
            &[
                ("topology/physical_package_id", package),
                ("topology/core_id", "3"),
                ("cache/index0/type", "Data"),
                ("cache/index0/level", "1"),
                ("cache/index0/size", "48K"),
                ("cache/index1/type", "Instruction"),
                ("cache/index2/type", "Unified"),
                ("cache/index2/level", "3"),
                ("cache/index2/size", "32M"),
                ("cache/index2/shared_cpu_list", "0-1"),
            ],
        );
        fs::create_dir(own.join(format!("node{package}"))).unwrap();
    }
    let found = processors(&fake.system().sys);
    assert_eq!(found.iter().map(|p| (p.cpu, p.package)).collect::<Vec<_>>(), [(0, 0), (1, 0), (10, 1)]);
    let (near, far) = (found[2].caches[0].clone(), found[2].caches[1].clone());
    assert_eq!((near.level, near.bytes, far.level, far.bytes), (1, 48 << 10, 3, 32 << 20));
    assert_eq!((found[2].core, found[2].numa, &far.shared_by[..]), (3, 1, "0-1"));
}

#[test]
fn this_machine_is_detected() {
    let topology = detect(&System::default());
    assert!(topology.cpus(Node(0)).count() >= 1 && !topology.seats().is_empty());
    assert_eq!(detect(&System::default()).digest(), topology.digest());
    assert!(!processors(Path::new("/sys")).is_empty());
    let again = xml::read(&xml::write(&topology)).unwrap();
    assert_eq!(again.nics(Node(0)).count(), topology.nics(Node(0)).count());
}

#[test]
fn settings_name_the_file_to_read_and_the_one_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dump) = (folder.path().join("in.xml"), folder.path().join("out.xml"));
    let config = |file: &Path, dump: &Path| {
        let pairs = [("NCCL_TOPO_FILE", file), ("CCL_TOPO_DUMP_FILE", dump)];
        Config::from_vars(pairs.map(|(name, path)| (name, path.to_str().unwrap()))).unwrap()
    };
    fs::write(&file, EIGHT_GPUS).unwrap();
    at_init(Rank(1), &config(&file, &dump)).unwrap();
    assert!(!dump.exists());
    at_init(Rank(0), &config(&file, &dump)).unwrap();
    assert_eq!(load_file(&dump).unwrap(), load_file(&file).unwrap());
    at_init(Rank(0), &Config::default()).unwrap();
    let error = at_init(Rank(1), &config(&folder.path().join("none.xml"), &dump)).unwrap_err();
    assert!(error.cause().contains("none.xml"), "{error}");
    fs::write(&file, "<system>\n<cpu numaid=\"x\"/></system>").unwrap();
    let error = load_file(&file).unwrap_err();
    assert_eq!(*error.fault(), crate::Fault::Usage);
    assert!(error.cause().contains("in.xml:2: <cpu>: expected a number for numaid, found `x`"), "{error}");
    assert!(error.advice().contains("ccl topo --xml"), "{error}");
    fs::write(&file, EIGHT_GPUS).unwrap();
    let error = at_init(Rank(0), &config(&file, &folder.path().join("no/out.xml"))).unwrap_err();
    assert!(error.advice().contains("CCL_TOPO_DUMP_FILE"), "{error}");
}
