//! Machines of several NUMA nodes: how RAM and CPUs are assigned, and that each CPU allocates from its own.

use crate::common::*;
use quire_frame::{AllocRequest, BootError, FailSite, Kind, ZoneReport};

const TEST: FailSite = FailSite::new("test");
/// Frames of each bank: 16 MiB.
const BANK: u64 = 0x1000;

/// Banks of `frames` frames with a hole behind each, the last one first.
fn banks(count: u64, frames: u64) -> Vec<PfnRange> {
    let bank = |number: u64| {
        let start = Pfn(BANK + number * 2 * BANK);
        PfnRange::new(start, start.offset(frames))
    };
    (0..count).rev().map(bank).collect()
}

fn host(nodes: usize, cpus: usize) -> HostConfig {
    HostConfig { ram: banks(nodes as u64, BANK), ..HostConfig::with_ram(0) }
        .nodes(nodes)
        .cpus(cpus)
        .paranoid()
}

fn node(index: usize) -> NodeId {
    NodeId::new(index).unwrap()
}

/// The zone of each node. All RAM of these machines is below 4 GiB.
fn zones(machine: &Machine) -> Vec<ZoneReport> {
    machine.memory().frames().reports().zone_reports().collect()
}

/// The free frames of each node.
fn free(machine: &Machine) -> Vec<u64> {
    zones(machine).iter().map(|zone| zone.free + zone.pcp).collect()
}

#[test]
fn invalid_node_counts_are_refused() {
    let refusal = |config: &HostConfig| {
        let error = HostPlatform::<X86_64Level4>::new(config).unwrap_err();
        assert!(!error.to_string().is_empty());
        error
    };
    assert!(matches!(refusal(&host(1, 1).nodes(0)), HostError::NodeCount(0)));
    let many = HostConfig { ram: banks(MAX_NODES as u64 + 1, 1), ..host(1, 1) };
    assert!(matches!(refusal(&many.clone().nodes(MAX_NODES + 1)), HostError::NodeCount(9)));
    assert!(HostPlatform::<X86_64Level4>::new(&many.nodes(MAX_NODES)).is_ok());
    // A range without frames gives a node nothing.
    let mut ram = banks(2, BANK);
    ram.push(PfnRange::new(Pfn(7), Pfn(7)));
    let poor = HostConfig { ram, ..host(1, 1) }.nodes(3);
    assert!(matches!(refusal(&poor), HostError::NodeWithoutRam { nodes: 3, ranges: 2 }));
}

#[test]
fn ranges_and_cpus_are_assigned_to_nodes_in_turn() {
    let config = HostConfig { ram: banks(3, 1), ..host(2, 5) };
    let platform = HostPlatform::<X86_64Level4>::new(&config).unwrap();
    assert_eq!(platform.node_count(), 2);
    let mut ranges = Vec::new();
    platform.for_each_ram(&mut |range| ranges.push(platform.node_of_ram(range.start()).index()));
    assert_eq!(ranges, [0, 1, 0]);
    let cpus = (0..5).filter_map(CpuId::new);
    assert_eq!(cpus.map(|cpu| platform.node_of_cpu(cpu).index()).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);

    let plain = HostPlatform::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(2)).unwrap();
    assert_eq!(plain.node_count(), 1);
    assert_eq!(plain.node_of_cpu(CpuId::new(1).unwrap()), NodeId::FIRST);
    assert_eq!(plain.node_of_ram(HostConfig::FIRST_FRAME), NodeId::FIRST);
}

#[test]
fn two_nodes_cannot_share_a_page_block() {
    let start = Pfn(BANK + Order::PMD.pages() + 1);
    let border = |gap: u64| {
        let ram = vec![PfnRange::new(Pfn(BANK), start), PfnRange::new(start.offset(gap), Pfn(2 * BANK))];
        Machine::<X86_64Level4>::new(&HostConfig { ram, ..host(1, 1) }.nodes(2), MemoryConfig::default())
    };
    for gap in [0, 100] {
        match border(gap).map(|_| ()) {
            Err(MachineError::Memory(BuildError::Boot(BootError::SharedPageBlock(pfn)))) => {
                assert_eq!(pfn, start.offset(gap));
            }
            other => panic!("with {gap} frames between the nodes: {other:?}"),
        }
    }
    // A hole for the rest of the block separates them.
    assert_audit(&border(Order::PMD.pages() - 1).unwrap());
}

#[test]
fn each_node_has_its_zone() {
    let machine: Machine = Setup::of(host(2, 1)).build();
    let zones = zones(&machine);
    assert_eq!(zones.len(), 2);
    for (index, zone) in zones.iter().enumerate() {
        let start = Pfn(BANK + index as u64 * 2 * BANK);
        assert_eq!(zone.node, node(index));
        assert_eq!((zone.span, zone.present), (PfnRange::new(start, start.offset(BANK)), BANK));
        assert_eq!(zone.pageblocks.iter().sum::<u64>(), BANK / Order::PMD.pages());
    }
    // The memory map lies on one node and takes its frames there.
    let reserved = machine.memory().frames().reserved();
    let home = usize::from(!zones[0].span.contains(reserved.start()));
    assert_eq!(zones[home].managed, BANK - reserved.len());
    assert_eq!(zones[1 - home].managed, BANK);
    assert_audit(&machine);
}

#[test]
fn memory_comes_from_the_cpus_own_node_and_from_the_other_when_that_is_full() {
    let machine: Machine = Setup::of(host(2, 2)).build();
    let frames = machine.memory().frames();
    let before = free(&machine);
    for order in [Order::ZERO, Order::ALL[3], Order::MAX] {
        for number in [0, 1] {
            let cpu = machine.vcpu(number).unwrap();
            cpu.run(|| {
                let pin = frames.platform().pin();
                // What the other CPU's lists hold of this node is drained only after the far node's memory is
                // used.
                frames.pcp().drain_all(&pin);
                let request = AllocRequest::new(order, TEST);
                let mut blocks = Vec::new();
                let error = loop {
                    match frames.allocate(&pin, request) {
                        Ok(pfn) => blocks.push(pfn),
                        Err(error) => break error,
                    }
                };
                assert_eq!(error, AllocError::OutOfMemory);
                let home = |&pfn: &Pfn| frames.frame(pfn).unwrap().zone().node() == node(number);
                let near = blocks.iter().take_while(|pfn| home(pfn)).count();
                assert!(!blocks[near..].iter().any(home), "order {order}, CPU {number}: it came back");
                assert!(near > 0 && near < blocks.len(), "order {order}, CPU {number}: {near} near");
                if order == Order::ZERO {
                    assert_eq!(blocks.len() as u64, before.iter().sum::<u64>());
                    assert_eq!(near as u64, before[number]);
                }
                for pfn in blocks {
                    frames.free(&pin, pfn, order).unwrap();
                }
            });
            assert_eq!(free(&machine), before, "order {order}, CPU {number}");
            assert_audit(&machine);
        }
    }
}

/// A space that two CPUs of two nodes touch, its child, and the exit of both.
#[test]
fn a_whole_life_on_two_nodes() {
    const PAGES: u64 = 300;
    let machine: Machine = Setup::of(host(2, 2)).build();
    let cpus = [machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap()];
    let before = in_use(&machine);
    let on_nodes = || {
        let mut counts = [0; 2];
        machine.memory().frames().audit().for_each_frame(|_, frame| {
            counts[frame.zone().node().index()] += u64::from(frame.kind() == Kind::Anonymous);
        });
        counts
    };
    let programs_page = |number: u64, index: u64| index * 2 + number;
    {
        let space = create_space(&machine).audited(&machine);
        let area = space.mmap(&MapRequest::anonymous(2 * PAGES * PAGE, RW)).unwrap();
        for (number, cpu) in (0..).zip(&cpus) {
            let program = cpu.program(&space);
            for index in 0..PAGES {
                let own = programs_page(number, index);
                program.write_u64(page(area, own), own + 1).unwrap();
            }
        }
        assert_eq!(on_nodes(), [PAGES, PAGES]);
        assert_audit(&machine);

        // Pages are shared, and a copy is allocated where the first write is.
        let child = cpus[1].run(|| space.fork()).unwrap();
        assert_eq!(on_nodes(), [PAGES, PAGES]);
        let program = cpus[0].program(&child);
        for index in 0..2 * PAGES {
            assert_eq!(program.read_u64(page(area, index)).unwrap(), index + 1);
        }
        program.write_u64(VirtAddr(area.0), 77).unwrap();
        assert_eq!(cpus[1].program(&space).read_u64(area).unwrap(), 1);
        assert_eq!(on_nodes(), [PAGES + 1, PAGES]);
        assert_audit(&machine);

        // One CPU frees pages of both nodes.
        cpus[0].run(|| space.munmap(area, PAGES * PAGE)).unwrap();
        assert_eq!(on_nodes(), [PAGES, PAGES], "but for the first page the child has them still");
        cpus[1].run(|| drop(child));
        assert_eq!(on_nodes(), [PAGES / 2, PAGES / 2]);
    }
    assert_eq!(on_nodes(), [0, 0]);
    assert_eq!(in_use(&machine), before);
}
