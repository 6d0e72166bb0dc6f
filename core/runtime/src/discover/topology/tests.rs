//! Files that say different things, and machines that do not exist.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ccl_plan::topology::{
    Component, Cpu, Distance, Gpu, Kind, Medium, Nic, Node, Pci, Router, TopologyBuilder, Vendor, Vertex,
};
use proptest::prelude::*;
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

#[test]
fn a_file_of_nccl_is_read_as_nccl_reads_it() {
    let topology = read(EIGHT_GPUS, "eight-gpus.xml").unwrap();
    let gpus: Vec<_> = topology.devices(Node(0)).collect();
    let nics: Vec<_> = topology.nics(Node(0)).collect();
    assert_eq!((topology.nodes().len(), gpus.len(), topology.seats()), (1, 8, &gpus[..]));
    assert_eq!(names(&topology, nics.iter().copied())[..2], ["mlx5_0", "mlx5_1"]);
    assert_eq!(width(&topology, gpus[0], gpus[7]), Some((Distance::Nvl, 240.0)));
    assert_eq!(width(&topology, gpus[0], nics[1]), Some((Distance::Pix, 24.0)));
    assert_eq!(width(&topology, gpus[0], nics[7]), Some((Distance::Pxn, 24.0)));
    let cpus: Vec<_> = topology.cpus(Node(0)).collect();
    assert_eq!(width(&topology, gpus[0], cpus[0]), Some((Distance::Phb, 24.0)));
    assert_eq!(width(&topology, cpus[0], cpus[1]), Some((Distance::Sys, 16.0)));
    let Kind::Nic(nic) = &topology.component(nics[3]).kind else { panic!() };
    assert_eq!((nic.device, nic.speed_mbit_per_s, nic.port, nic.gdr), (3, 200_000, 1, true));
    assert_eq!(nic.guid, 0x0c42_a103_00b1_0003);
    assert_eq!(topology.component(gpus[7]).pci.unwrap().bus.to_string(), "0000:c9:00.0");
}

#[test]
fn what_is_written_is_read_back() {
    for text in [EIGHT_GPUS, POWER, SUPERCHIP, TEMPLATE, TWO_HOSTS] {
        let topology = read(text, "file").unwrap();
        let again = read(&write(&topology), "again").unwrap();
        assert_eq!(again, topology, "{}", write(&topology));
        assert_eq!(again.digest(), topology.digest());
    }
}

/// GPUs that have NVLinks to their CPU, and an adapter with two ports.
const POWER: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="ppc64" vendor="" familyid="0" modelid="0">
    <pci busid="0004:04:00.0" class="0x030200" link_speed="8 GT/s" link_width="4">
      <gpu dev="0" sm="70" rank="1" gdr="1">
        <nvlink target="0004:00:00.0" count="2" tclass="0x068001"/>
        <nvlink target="0004:05:00.0" count="2" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0004:05:00.0" class="0x030200" link_speed="8 GT/s" link_width="4">
      <gpu dev="1" sm="70" rank="0" gdr="1">
        <nvlink target="0004:00:00.0" count="2" tclass="0x068001"/>
        <nvlink target="0004:04:00.0" count="2" tclass="0x030200"/>
        <nvlink target="0004:06:00.0" count="2" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0003:01:00.0" class="0x020700" link_speed="16 GT/s" link_width="8">
      <nic>
        <net name="mlx5_0" dev="0" latency="1.5" speed="100000" port="1" guid="0x1" maxconn="64" gdr="0"/>
        <net name="mlx5_1" dev="1" speed="100000" port="2" guid="0x1" maxconn="64" gdr="0" coll="1"/>
      </nic>
    </pci>
  </cpu>
  <cpu numaid="8" affinity="ff00" arch="ppc64"/>
</system>"#;

#[test]
fn gpus_may_be_linked_with_their_cpu() {
    let topology = read(POWER, "power.xml").unwrap();
    let gpus: Vec<_> = topology.devices(Node(0)).collect();
    let (cpus, nics): (Vec<_>, Vec<_>) = (topology.cpus(Node(0)).collect(), topology.nics(Node(0)).collect());
    assert_eq!(topology.seats(), [gpus[1], gpus[0]]);
    assert_eq!(width(&topology, gpus[0], cpus[0]), Some((Distance::Nvl, 40.0)));
    assert_eq!(width(&topology, cpus[0], cpus[1]), Some((Distance::Sys, 32.0)));
    // Both ports share the adapter's eight lanes.
    assert_eq!(width(&topology, gpus[0], nics[1]), Some((Distance::Phb, 12.0)));
    let Kind::Nic(nic) = &topology.component(nics[0]).kind else { panic!() };
    assert_eq!((nic.latency_ns, nic.reduces), (1500, false));
    // A link to a GPU that is not in the file is not there.
    assert_eq!(topology.links_from(gpus[1]).count(), 3);
}

const SUPERCHIP: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="arm64">
    <pci busid="0009:01:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"><c2c bw="44712" count="10"/></gpu>
    </pci>
    <nic><net name="hsn0" dev="0" speed="200000"/></nic>
  </cpu>
</system>"#;

#[test]
fn a_chip_to_chip_link_is_read() {
    let topology = read(SUPERCHIP, "superchip.xml").unwrap();
    let [gpu, cpu] = [topology.devices(Node(0)).next(), topology.cpus(Node(0)).next()].map(Option::unwrap);
    assert_eq!(width(&topology, gpu, cpu), Some((Distance::C2c, 447.12)));
    let nic = topology.nics(Node(0)).next().unwrap();
    assert_eq!(width(&topology, gpu, nic), Some((Distance::P2c, 447.12)));
}

/// What clouds ship: the tree without what the driver tells.
const TEMPLATE: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <unheard of="anything"/>
    </pci>
  </cpu>
</system>"#;

#[test]
fn a_template_knows_devices_by_their_class() {
    let topology = read(TEMPLATE, "template.xml").unwrap();
    let gpu = topology.devices(Node(0)).next().unwrap();
    let nic = topology.nics(Node(0)).next().unwrap();
    assert_eq!(topology.seats(), [gpu]);
    assert_eq!(width(&topology, gpu, nic), Some((Distance::Pix, 12.0)));
}

const TWO_HOSTS: &str = r#"<system version="1">
  <cpu host_hash="0xabc" numaid="0" arch="x86_64"/>
  <cpu host_hash="0xdef" numaid="0" arch="x86_64"/>
  <cpu host_hash="0xabc" numaid="1" arch="x86_64"/>
</system>"#;

#[test]
fn hosts_are_told_apart_by_their_hash() {
    let topology = read(TWO_HOSTS, "hosts.xml").unwrap();
    let cpus = |node| topology.cpus(node).collect::<Vec<_>>();
    assert_eq!([cpus(Node(0)), cpus(Node(1))], [vec![Vertex(0), Vertex(2)], vec![Vertex(1)]]);
    assert_eq!(topology.host(Node(1)).hash, 0xdef);
    assert_eq!(topology.seats().len(), 3);
    assert_eq!(width(&topology, Vertex(0), Vertex(1)), None);
}

#[test]
fn errors_name_the_line() {
    let gpu = |attributes: &str| {
        format!(
            "<system>\n<cpu>\n<pci busid=\"0:1:0.0\" class=\"0x03\">\n<gpu {attributes}/></pci></cpu></system>"
        )
    };
    for (text, parts) in [
        ("<system>\n<cpu></system>".to_owned(), ["f.xml", "at 2:"]),
        ("<graphs/>".to_owned(), ["f.xml:1: <graphs>", "expected <system>"]),
        ("<system>\n\n<cpu numaid=\"x\"/></system>".to_owned(), ["f.xml:3: <cpu>", "numaid, found `x`"]),
        ("<system><cpu>\n<pci busid=\"7\"/></cpu></system>".to_owned(), ["f.xml:2: <pci>", "busid as in"]),
        (gpu("dev=\"-1\""), ["f.xml:4: <gpu>", "number for dev, found `-1`"]),
        (gpu("sm=\"0xz\""), ["f.xml:4: <gpu>", "found `0xz`"]),
        (gpu("rank=\"1\""), ["f.xml:1: <system>", "a GPU with rank 0, found `rank 1`"]),
        (gpu("").replace("0x03\"", "3\" link_speed=\"fast\""), ["f.xml:3: <pci>", "16 GT/s"]),
    ] {
        let error = read(&text, "f.xml").unwrap_err();
        assert_eq!(*error.fault(), crate::Fault::Usage);
        for part in parts {
            assert!(error.cause().contains(part), "{part} in {error}");
        }
        assert!(error.advice().contains("ccl topo --xml"));
    }
}

proptest! {
    #[test]
    fn any_file_is_refused_or_read(text in "(<(system|cpu|pci|gpu|net|/)( (busid|rank)=\"[0-9:.]{0,8}\")?>?){0,8}") {
        if let Ok(topology) = read(&text, "chance") {
            prop_assert_eq!(read(&write(&topology), "again").unwrap(), topology);
        }
    }

    /// Machines that no file was made from: what is written describes what was written.
    #[test]
    fn built_machines_are_written(
        switches in prop::collection::vec((0..2_usize, 0..6_u32), 1..5),
        devices in prop::collection::vec((0..9_usize, 0..3_u32, any::<u16>()), 1..12),
    ) {
        let mut builder = TopologyBuilder::default();
        let node = builder.node("host");
        let mut parents: Vec<_> = (0..2).map(|numa| {
            builder.vertex(Component::new(Kind::Cpu(Cpu { numa, vendor: Vendor::Intel, ..Cpu::default() })).on(node))
        }).collect();
        builder.link_both(parents[0], parents[1], Medium::Memory, 10.0, 100.0);
        for (parent, power) in switches {
            let switch = builder.vertex(Component::new(Kind::PcieSwitch).on(node));
            builder.link_both(parents[parent], switch, Medium::Pcie, 3.0 * f64::from(1 << power), 250.0);
            parents.push(switch);
        }
        for (parent, kind, number) in devices {
            let pci = Pci { bus: ccl_plan::topology::BusId(u64::from(number) << 12), ..Pci::default() };
            let nic = Nic { device: number.into(), speed_mbit_per_s: 1000, ..Nic::default() };
            let component = match kind {
                0 => Component::new(Kind::Gpu(Gpu { device: number.into(), sm: 80, gdr: true })),
                1 => Component::new(Kind::Nic(nic)).at(pci).named("a <\"nic\"> & more"),
                _ => Component::new(Kind::Nic(nic)),
            };
            let vertex = builder.vertex(component.on(node));
            builder.link_both(parents[parent % parents.len()], vertex, Medium::Pcie, 12.0, 250.0);
        }
        let topology = builder.build().unwrap();
        let text = write(&topology);
        let again = read(&text, "again").unwrap();
        let count = |t: &Topology| [t.devices(Node(0)).count(), t.nics(Node(0)).count(), t.cpus(Node(0)).count()];
        prop_assert_eq!(count(&again), count(&topology));
        prop_assert_eq!(read(&write(&again), "once more").unwrap(), again);
    }
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
    let again = read(&write(&topology), "server.xml").unwrap();
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
    let again = read(&write(&topology), "this machine").unwrap();
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
    let error = at_init(Rank(0), &config(&file, &folder.path().join("no/out.xml"))).unwrap_err();
    assert!(error.advice().contains("CCL_TOPO_DUMP_FILE"), "{error}");
}
