//! Files that say different things.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::topology::{
    BusId, Component, Cpu, Distance, Gpu, Kind, Medium, Nic, Node, Pci, Router, Topology, TopologyBuilder,
    Vendor, Vertex,
};

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
    let topology = read(EIGHT_GPUS).unwrap();
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
        let topology = read(text).unwrap();
        let again = read(&write(&topology)).unwrap();
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
    let topology = read(POWER).unwrap();
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
    let topology = read(SUPERCHIP).unwrap();
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
    let topology = read(TEMPLATE).unwrap();
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
    let topology = read(TWO_HOSTS).unwrap();
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
        ("<system>\n<cpu></system>".to_owned(), ["2: expected XML", "at 2:"]),
        ("<graphs/>".to_owned(), ["1: <graphs>", "expected <system>"]),
        ("<system>\n\n<cpu numaid=\"x\"/></system>".to_owned(), ["3: <cpu>", "numaid, found `x`"]),
        ("<system><cpu>\n<pci busid=\"7\"/></cpu></system>".to_owned(), ["2: <pci>", "busid as in"]),
        (gpu("dev=\"-1\""), ["4: <gpu>", "number for dev, found `-1`"]),
        (gpu("sm=\"0xz\""), ["4: <gpu>", "found `0xz`"]),
        (gpu("rank=\"1\""), ["1: <system>", "a GPU with rank 0, found `rank 1`"]),
        (gpu("").replace("0x03\"", "3\" link_speed=\"fast\""), ["3: <pci>", "16 GT/s"]),
    ] {
        let error = read(&text).unwrap_err();
        for part in parts {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
    }
}

proptest! {
    #[test]
    fn any_file_is_refused_or_read(text in "(<(system|cpu|pci|gpu|net|/)( (busid|rank)=\"[0-9:.]{0,8}\")?>?){0,8}") {
        if let Ok(topology) = read(&text) {
            prop_assert_eq!(read(&write(&topology)).unwrap(), topology);
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
            let pci = Pci { bus: BusId(u64::from(number) << 12), ..Pci::default() };
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
        let again = read(&text).unwrap();
        let count = |t: &Topology| [t.devices(Node(0)).count(), t.nics(Node(0)).count(), t.cpus(Node(0)).count()];
        prop_assert_eq!(count(&again), count(&topology));
        prop_assert_eq!(read(&write(&again)).unwrap(), again);
    }
}
