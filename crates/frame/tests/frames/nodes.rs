//! Several nodes, each with zones of its own.

use crate::support::*;

const BORDER: u64 = 1 << 20;

/// Node 0 below 4 GiB, node 1 on both sides of it.
fn machine(pcp: PcpTechnique) -> Audited {
    let banks = [(BORDER - 4096, BORDER - 2048), (BORDER - 2048, BORDER + 1024)];
    frames_of(Machine::new(&banks, 2).nodes(2), pcp)
}

fn node(number: usize) -> NodeId {
    NodeId::new(number).unwrap()
}

#[test]
fn a_cpu_is_served_by_its_own_node_first() {
    for pcp in PcpTechnique::ALL {
        let frames = machine(pcp);
        let reports: Vec<_> = frames.reports().zone_reports().map(|zone| (zone.node, zone.kind)).collect();
        let expected = [(node(0), ZoneKind::Dma32), (node(1), ZoneKind::Dma32), (node(1), ZoneKind::Normal)];
        assert_eq!(reports, expected);
        for cpu in [0, 1] {
            run_on(cpu);
            let pin = frames.platform().pin();
            let pfn = frames.allocate(&pin, ONE).unwrap();
            let own = ZoneId::new(node(cpu), ZoneKind::ALL[cpu]);
            assert_eq!(frames.known(pfn).zone(), own);
            // Node 1 has memory below 4 GiB too.
            let low = frames.allocate(&pin, ONE.from_zone(ZoneKind::Dma32)).unwrap();
            assert_eq!(frames.known(low).zone(), ZoneId::new(node(cpu), ZoneKind::Dma32));
            put_all(&frames, [pfn, low], Order::ZERO);
        }
        run_on(0);
    }
}

/// A node that is full is helped out by the next, highest zone first.
#[test]
fn a_full_node_falls_over_to_the_other() {
    let frames = machine(PcpTechnique::All);
    run_on(0);
    let pin = frames.platform().pin();
    let mut order_of_zones: Vec<ZoneId> = Vec::new();
    let mut all = Vec::new();
    while let Ok(pfn) = frames.allocate(&pin, ONE) {
        let zone = frames.known(pfn).zone();
        if order_of_zones.last() != Some(&zone) {
            order_of_zones.push(zone);
        }
        all.push(pfn);
    }
    let expected = [
        ZoneId::new(node(0), ZoneKind::Dma32),
        ZoneId::new(node(1), ZoneKind::Normal),
        ZoneId::new(node(1), ZoneKind::Dma32),
    ];
    assert_eq!(order_of_zones, expected);
    let reserves: u64 = frames.reports().zone_reports().map(|zone| zone.lowmem_reserve).sum();
    assert_eq!(all.len() as u64, frames.reports().totals().managed - reserves);
    put_all(&frames, all, Order::ZERO);
    frames.pcp().drain_all(&pin);
}

/// Free blocks on two sides of a border between nodes do not become one.
#[test]
fn neighbours_of_two_nodes_stay_apart() {
    let banks = [(0, 2048), (2048, 2048 + 512), (2048 + 512, 8192)];
    let frames = frames_of(Machine::new(&banks, 2).nodes(2), PcpTechnique::None);
    assert_sound(&frames);
    run_on(0);
    let pin = frames.platform().pin();
    let largest = AllocRequest::new(order(10), TEST);
    while let Ok(pfn) = frames.allocate(&pin, largest) {
        let zones = [pfn, pfn.offset(512)].map(|pfn| frames.known(pfn).zone());
        assert_eq!(zones[0], zones[1], "{pfn:?}");
    }
}

#[test]
fn invalid_node_counts_are_refused() {
    let new = |banks: &[(u64, u64)], nodes| {
        Frames::new(Machine::new(banks, 1).nodes(nodes), FrameConfig::default()).map(drop)
    };
    let shared = new(&[(0, 2048 + 100), (2048 + 100, 4096)], 2);
    assert_eq!(shared, Err(BootError::SharedPageBlock(Pfn(2148))));
    assert_eq!(new(&[(0, 4096)], 9), Err(BootError::NodeCount(9)));
}
