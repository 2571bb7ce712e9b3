//! The figures in the texts are those of the machine: on machines in a known state, and against each other.

use crate::common::{
    BANK, UPPER, allocate, block, free, label, machine, machine_with, numbers, small, text, two_nodes,
    two_zones, words, zones,
};
use quire_arch::{Order, PAGE_SIZE, Pfn, PfnRange, Platform};
use quire_frame::{Kind, Migratetype, ZoneKind};
use quire_host::Machine;
use quire_mm::{
    MemoryConfig, Techniques,
    frame::PcpTechnique,
    proc,
    space::{MapRequest, Protection},
};
use quire_slab::SlabCache;

/// A zone's part of zoneinfo, or a line of a table: the node, the kind of zone, and the rest.
#[derive(PartialEq, Debug)]
struct OfZone {
    node: u64,
    kind: String,
    /// Figures in their order, each with its name if it has one.
    figures: Vec<(String, u64)>,
}

impl OfZone {
    /// Reads a line that begins as those of buddyinfo do.
    fn line(line: &str) -> Self {
        let words = words(line);
        assert_eq!((words[0], words[2]), ("Node", "zone"), "{line:?}");
        let kind = words[3].trim_matches(',').to_owned();
        let figures = words[4..].iter().filter_map(|word| Some((String::new(), word.parse().ok()?)));
        Self { node: words[1].trim_matches(',').parse().unwrap(), kind, figures: figures.collect() }
    }

    fn values(&self) -> Vec<u64> {
        self.figures.iter().map(|figure| figure.1).collect()
    }

    /// The figures called `name`.
    fn all(&self, name: &str) -> Vec<u64> {
        self.figures.iter().filter(|figure| figure.0 == name).map(|figure| figure.1).collect()
    }

    /// The only figure called `name`.
    #[track_caller]
    fn one(&self, name: &str) -> u64 {
        match self.all(name)[..] {
            [figure] => figure,
            ref several => panic!("{name}: {several:?}"),
        }
    }
}

fn buddyinfo(machine: &Machine) -> Vec<OfZone> {
    text(machine, proc::buddyinfo).lines().map(OfZone::line).collect()
}

fn zoneinfo(machine: &Machine) -> Vec<OfZone> {
    let text = text(machine, proc::zoneinfo);
    let mut zones: Vec<OfZone> = Vec::new();
    for line in text.lines() {
        if line.starts_with("Node") {
            zones.push(OfZone::line(line));
        } else if let Some(zone) = zones.last_mut() {
            let name = label(line.split('(').next().unwrap_or(line)).trim();
            zone.figures.extend(numbers(line).into_iter().map(|figure| (name.to_owned(), figure)));
        }
    }
    zones
}

/// pagetypeinfo: free blocks by zone, type and order; page blocks by zone and type.
fn pagetypeinfo(machine: &Machine) -> (Vec<(String, OfZone)>, Vec<OfZone>) {
    let text = text(machine, proc::pagetypeinfo);
    let lines = text.lines().filter(|line| line.starts_with("Node"));
    let (free, blocks): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains("type"));
    let free = free.into_iter().map(|line| (words(line)[5].to_owned(), OfZone::line(line)));
    (free.collect(), blocks.into_iter().map(OfZone::line).collect())
}

/// The figure behind `name` in vmstat or meminfo.
#[track_caller]
fn figure(text: &str, name: &str) -> u64 {
    let line =
        text.lines().find(|line| words(line)[0] == name).unwrap_or_else(|| panic!("no {name}: {text}"));
    words(line)[1].parse().unwrap()
}

fn frames_of(blocks: &[u64]) -> u64 {
    assert_eq!(blocks.len(), Order::COUNT);
    blocks.iter().zip(Order::ALL).map(|(blocks, order)| blocks << order.get()).sum()
}

/// A configuration without per-CPU lists, so that every block is where the zone has it.
fn bare() -> MemoryConfig {
    let mut techniques = Techniques::default();
    techniques.pcp = PcpTechnique::None;
    MemoryConfig { techniques, min_free_kib: Some(0), ..MemoryConfig::default() }
}

/// Three nodes with a CPU each and without per-CPU lists; and the number of a node of which no frame is
/// allocated.
fn bare_nodes() -> (Machine, usize) {
    let machine = machine_with(&[(BANK, 2 * BANK), (4 * BANK, 5 * BANK), (6 * BANK, 7 * BANK)], 3, 3, bare());
    let whole = zones(&machine).iter().position(|zone| zone.free == BANK);
    (machine, whole.expect("the memory map and the first caches are on two nodes"))
}

/// What the texts say of free memory agrees, and is `free` in all.
#[track_caller]
fn assert_free(machine: &Machine, free: u64) {
    let (buddy, zones) = (buddyinfo(machine), zoneinfo(machine));
    let (types, _) = pagetypeinfo(machine);
    let mut sum = 0;
    for line in &buddy {
        let zone = zones.iter().find(|zone| (zone.node, &zone.kind) == (line.node, &line.kind)).unwrap();
        let kept: u64 = zone.all("count:").iter().sum();
        assert_eq!(frames_of(&line.values()) + kept, zone.one("nr_free_pages"), "{zone:?}");
        assert_eq!(zone.one("pages free"), zone.one("nr_free_pages"));
        sum += zone.one("nr_free_pages");
        let of_zone = types.iter().filter(|(_, of)| (of.node, &of.kind) == (line.node, &line.kind));
        let by_type = of_zone.fold([0; Order::COUNT], |mut sums, (_, of)| {
            sums.iter_mut().zip(of.values()).for_each(|(sum, blocks)| *sum += blocks);
            sums
        });
        assert_eq!(line.values(), by_type);
    }
    assert_eq!(sum, free);
    let vmstat = text(machine, proc::vmstat);
    assert_eq!(figure(&vmstat, "nr_free_pages"), free);
    let blocks: u64 = zones.iter().flat_map(|zone| zone.all("nr_free_pages_blocks")).sum();
    assert_eq!(figure(&vmstat, "nr_free_pages_blocks"), blocks);
    assert_eq!(figure(&text(machine, proc::meminfo), "MemFree:"), (free * PAGE_SIZE) >> 10);
}

#[test]
fn free_memory_is_the_same_in_every_text() {
    for machine in [small(2), two_zones(2), two_nodes(2), machine(&[(BANK, 3 * BANK)], 1, 1)] {
        let before = machine.memory().frames().reports().free_frames();
        assert_free(&machine, before);
        let cpus = machine.memory().platform().cpu_count();
        let singles = allocate(&machine, 0, block(0), 100);
        let blocks = allocate(&machine, cpus - 1, block(3), 20);
        assert_free(&machine, before - 100 - 20 * 8);
        free(&machine, cpus - 1, Order::ZERO, singles);
        assert_free(&machine, before - 20 * 8);
        let kept: u64 = zones(&machine).iter().map(|zone| zone.pcp).sum();
        assert!(kept > 0);
        free(&machine, 0, Order::ALL[3], blocks);
        assert_free(&machine, before);
    }
}

/// What a CPU has too much of goes back to the one that it came from, which fetches it when its own lists are
/// empty.
#[test]
fn what_is_on_its_way_from_one_cpu_to_another_is_free() {
    let machine = small(2);
    let before = machine.memory().frames().reports().free_frames();
    let on_its_way = || {
        let lists = machine.memory().frames().reports().pcp_reports(ZoneKind::Dma32);
        lists.map(|list| list.returned).sum::<u64>()
    };
    let mut rounds = 0;
    while on_its_way() == 0 {
        rounds += 1;
        assert!(rounds < 100, "nothing is ever returned");
        let pages = allocate(&machine, 0, block(0), 300);
        free(&machine, 1, Order::ZERO, pages);
    }
    assert_free(&machine, before);
}

#[test]
fn free_page_blocks_are_whole_and_not_isolated() {
    let (machine, whole) = bare_nodes();
    let mut zone = zones(&machine).remove(whole);
    assert_eq!(zone.free_in_page_blocks(), BANK);
    let [.., below, order, _] = &mut zone.blocks;
    below[Migratetype::Movable.index()] += 3;
    order[Migratetype::HighAtomic.index()] += 1;
    order[Migratetype::Isolate.index()] += 5;
    assert_eq!(zone.free_in_page_blocks(), BANK + Order::PMD.pages());
}

#[test]
fn a_block_is_split_before_the_readers_eyes() {
    let (machine, whole) = bare_nodes();
    let line = |machine: &Machine| buddyinfo(machine)[whole].values();
    let pages_in_blocks = |machine: &Machine| {
        let of_node = zoneinfo(machine).into_iter().filter(|zone| zone.node == whole as u64);
        of_node.flat_map(|zone| zone.all("nr_free_pages_blocks")).sum::<u64>()
    };
    let movable = |machine: &Machine| {
        let (free, blocks) = pagetypeinfo(machine);
        let of_zone = |of: &OfZone| of.node == whole as u64;
        let row = free.into_iter().find(|(name, of)| name == "Movable" && of_zone(of)).unwrap().1;
        (row.values(), blocks.into_iter().find(of_zone).unwrap().values())
    };
    let untouched = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, BANK / Order::MAX.pages()];
    let page_blocks = [0, BANK / Order::PMD.pages(), 0, 0, 0];
    assert_eq!(line(&machine), untouched);
    assert_eq!(movable(&machine), (untouched.to_vec(), page_blocks.to_vec()));
    assert_eq!(pages_in_blocks(&machine), BANK);

    let pages = allocate(&machine, whole, block(0).movability(Migratetype::Movable), 1);
    let split = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3];
    assert_eq!(line(&machine), split);
    assert_eq!(movable(&machine), (split.to_vec(), page_blocks.to_vec()));
    assert_eq!(pages_in_blocks(&machine), BANK - Order::PMD.pages());
    free(&machine, whole, Order::ZERO, pages);
    assert_eq!(line(&machine), untouched);

    // What cannot move gets page blocks of its own, and they keep their type.
    let pages = allocate(&machine, whole, block(0), 1);
    let (_, blocks) = movable(&machine);
    assert!(blocks[0] > 0 && blocks.iter().sum::<u64>() == 8, "{blocks:?}");
    free(&machine, whole, Order::ZERO, pages);
    assert_eq!(line(&machine), untouched);
}

#[test]
fn each_nodes_types_have_their_headings() {
    let text = text(&two_nodes(1), proc::pagetypeinfo);
    let headings =
        text.lines().map(str::trim_end).filter(|line| !line.starts_with("Node")).collect::<Vec<_>>();
    assert_eq!(headings.len(), 12);
    assert_eq!(headings[..6], headings[6..]);
    let nodes: Vec<u64> =
        text.lines().filter(|line| line.starts_with("Node")).map(|line| OfZone::line(line).node).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn zoneinfo_tells_sizes_watermarks_and_reserves() {
    let config = MemoryConfig { min_free_kib: Some(400), ..MemoryConfig::default() };
    let machine = machine_with(&[(UPPER - BANK, UPPER + BANK)], 1, 2, config);
    let texts = zoneinfo(&machine);
    let reports = zones(&machine);
    let kinds: Vec<&str> = texts.iter().map(|zone| zone.kind.as_str()).collect();
    assert_eq!(kinds, ["DMA32", "Normal"]);
    let managed: Vec<u64> = texts.iter().map(|zone| zone.one("managed")).collect();
    assert_eq!(managed.iter().sum::<u64>(), 2 * BANK - machine.memory().frames().reserved().len());
    for (zone, report) in texts.iter().zip(&reports) {
        assert_eq!((zone.one("spanned"), zone.one("present")), (BANK, BANK));
        // 400 KiB are 100 frames, shared out by size.
        let min = 100 * zone.one("managed") / managed.iter().sum::<u64>();
        assert_eq!([zone.one("boost"), zone.one("min")], [0, min]);
        assert_eq!([zone.one("low"), zone.one("high")], [min + min / 4, min + min / 4 * 2]);
        assert_eq!(zone.all("cpu:"), [0, 1]);
        assert_eq!(zone.all("high_min:").len(), 2);
        assert!(zone.all("batch:")[0] > 0);
        assert_eq!(zone.one("start_pfn:"), report.span.start().0);
    }
    assert_eq!(texts[0].one("start_pfn:"), UPPER - BANK);
    assert_eq!(texts[0].all("protection:"), [0, managed[1] / 256]);
    assert_eq!(texts[1].all("protection:"), [0, 0]);
}

#[test]
fn a_zone_without_frames_is_there_and_says_no_more_than_that() {
    let texts = zoneinfo(&two_nodes(1));
    let zones: Vec<(u64, &str)> = texts.iter().map(|zone| (zone.node, zone.kind.as_str())).collect();
    assert_eq!(zones, [(0, "DMA32"), (0, "Normal"), (1, "DMA32"), (1, "Normal")]);
    for zone in [&texts[1], &texts[3]] {
        assert_eq!(zone.values(), [0; 10], "{zone:?}");
        assert_eq!(zone.figures.last().unwrap().0, "protection:");
    }
}

#[test]
fn a_boost_shows_in_the_levels_it_raises() {
    let config = MemoryConfig { min_free_kib: Some(400), ..bare() };
    let machine = machine_with(&[(BANK, 2 * BANK)], 1, 1, config);
    // All memory to what can move, and one page of it back: what cannot move has to go between.
    let movable = block(0).movability(Migratetype::Movable).below_min();
    let all = machine.memory().frames().reports().free_frames() as usize;
    let mut pages = allocate(&machine, 0, movable, all);
    machine.memory().frames().watermarks().end_boost();
    let before = zoneinfo(&machine).remove(0);
    free(&machine, 0, Order::ZERO, vec![pages.swap_remove(all / 2)]);
    pages.extend(allocate(&machine, 0, block(0).below_min(), 1));
    let after = zoneinfo(&machine).remove(0);
    let boost = after.one("boost");
    assert_eq!(before.one("boost"), 0);
    assert!(boost > 0);
    for (name, raise) in [("min", 0), ("low", boost), ("high", boost)] {
        assert_eq!(after.one(name), before.one(name) + raise, "{name}");
    }
    free(&machine, 0, Order::ZERO, pages);
}

#[test]
fn frames_out_of_use_are_neither_managed_nor_free() {
    let machine = small(1);
    let reserved = machine.memory().frames().reserved();
    let range = PfnRange::new(Pfn(BANK), Pfn(BANK + 1024));
    assert!(!range.contains(reserved.start()) && !reserved.contains(range.start()));
    let before = zoneinfo(&machine).remove(0);
    {
        let pin = machine.memory().platform().pin();
        assert_eq!(machine.memory().frames().hotplug().take_offline(&pin, range), Ok(1024));
    }
    let after = zoneinfo(&machine).remove(0);
    assert_eq!(after.one("managed"), before.one("managed") - 1024);
    assert_eq!(after.one("present"), before.one("present") - 1024);
    assert_eq!(after.one("spanned"), before.one("spanned"));
    assert_free(&machine, before.one("nr_free_pages") - 1024);
}

#[test]
fn vmstat_counts_frames_of_each_zone_and_slab_frames() {
    let machine = two_zones(1);
    let at = |name: &str| figure(&text(&machine, proc::vmstat), name);
    let names = ["pgalloc_dma32", "pgalloc_normal", "pgfree"];
    let before = names.map(at);
    let mut pages = allocate(&machine, 0, block(0), 10);
    let low = block(2).from_zone(ZoneKind::Dma32);
    let blocks = allocate(&machine, 0, low, 5);
    assert_eq!(names.map(at), [before[0] + 20, before[1] + 10, before[2]]);
    free(&machine, 0, Order::ZERO, pages.split_off(3));
    free(&machine, 0, Order::ALL[2], blocks);
    assert_eq!(names.map(at), [before[0] + 20, before[1] + 10, before[2] + 7 + 20]);
    free(&machine, 0, Order::ZERO, pages);

    let slabs = || machine.memory().frames().reports().count_kinds()[Kind::Slab as usize];
    let space = machine.memory().create_space().unwrap();
    let frames = machine.memory().frames();
    {
        // So large that a slab has more than one frame.
        let pin = frames.platform().pin();
        let cache = SlabCache::new(frames, &pin, "large").unwrap();
        cache.allocate(frames, &pin, [0_u64; 500]).unwrap();
        assert!(cache.report(frames).unwrap().order > Order::ZERO);
    }
    assert_eq!(at("nr_slab_unreclaimable"), slabs());
    let faults = at("pgfault");
    let area =
        space.mmap(&MapRequest::anonymous(8 * PAGE_SIZE, Protection::READ | Protection::WRITE)).unwrap();
    machine.vcpu(0).unwrap().program(&space).write_u64(area, 1).unwrap();
    assert_eq!(at("pgfault"), faults + 1);
}

#[test]
fn slabinfo_counts_objects_slabs_and_what_is_kept_back() {
    const NAME: &str = "test_objects";
    /// The figures of the test's cache, in the order of the columns.
    fn line(machine: &Machine) -> [u64; 11] {
        let text = text(machine, proc::slabinfo);
        let line = text.lines().find(|line| words(line)[0] == NAME).expect("a line for each cache");
        numbers(line).try_into().expect("eleven figures")
    }
    let machine = small(2);
    let frames = machine.memory().frames();
    let pin = frames.platform().pin();
    let cache = SlabCache::new(frames, &pin, NAME).unwrap();
    let [objsize, objperslab, pagesperslab] = line(&machine)[2..5] else { unreachable!() };
    assert_eq!(line(&machine)[..2], [0, 0]);
    // The newest cache is the first.
    assert_eq!(words(text(&machine, proc::slabinfo).lines().nth(2).unwrap())[0], NAME);
    assert!(objsize >= 15 * 8);
    assert_eq!(objperslab, pagesperslab * PAGE_SIZE / objsize);

    let count = 10 * objperslab;
    let objects: Vec<_> = (0..count).map(|_| cache.allocate(frames, &pin, [7_u64; 15]).unwrap()).collect();
    let [active, all, _, _, _, limit, batch, shared, active_slabs, slabs, available] = line(&machine);
    assert_eq!((active, all), (count, slabs * objperslab));
    assert!(slabs >= 10 && active_slabs == slabs, "{active_slabs} of {slabs}");
    assert!(
        batch > 0 && limit >= batch && shared > 0 && available == 0,
        "{limit} {batch} {shared} {available}"
    );

    // An object that readers may still see is not free.
    let reader = frames.epoch().enter(&pin);
    for (number, object) in objects.into_iter().enumerate() {
        // SAFETY: the objects were allocated above, and each is given up once.
        unsafe {
            if number < 20 { cache.retire(frames, &pin, object) } else { cache.free(frames, &pin, object) }
        }
    }
    drop(reader);
    let [active, all, _, _, _, _, _, _, active_slabs, slabs, available] = line(&machine);
    assert_eq!((active, all), (20, slabs * objperslab));
    assert!(
        active_slabs <= slabs && available > 0 && available <= shared * batch,
        "{active_slabs} {slabs} {available}"
    );
    cache.reap(frames, &pin);
    cache.shrink(frames, &pin);
    let [active, all, .., active_slabs, slabs, available] = line(&machine);
    assert_eq!([active, all, active_slabs, slabs, available], [0; 5]);
}

#[test]
fn lock_stat_counts_takes_and_the_time_held_if_that_is_wished_for() {
    for timed in [false, true] {
        let config = MemoryConfig { time_locks: timed, ..bare() };
        let machine = machine_with(&[(BANK, 2 * BANK), (4 * BANK, 5 * BANK)], 2, 2, config);
        /// Name, contentions, acquisitions, time in hundredths of a microsecond in all and on average.
        fn lines(machine: &Machine) -> Vec<(String, [u64; 4])> {
            let text = text(machine, proc::lock_stat);
            let hundredths = |word: &str| word.replace('.', "").parse().unwrap();
            let read = |line: &str| {
                let words = words(line);
                let figures = [
                    words[1].parse().unwrap(),
                    words[2].parse().unwrap(),
                    hundredths(words[3]),
                    hundredths(words[4]),
                ];
                (words[0].to_owned(), figures)
            };
            text.lines().skip(1).map(read).collect()
        }
        let before = lines(&machine);
        let names: Vec<&str> = before.iter().map(|line| line.0.as_str()).collect();
        assert_eq!(names, ["&zone->lock/0/DMA32:", "&zone->lock/1/DMA32:"]);
        let pages = allocate(&machine, 1, block(0), 500);
        let takes = |machine: &Machine| zones(machine)[1].lock.takes;
        let (low, after, high) = (takes(&machine), lines(&machine)[1].1, takes(&machine));
        let [contentions, acquisitions, total, average] = after;
        assert_eq!(contentions, 0);
        assert!(acquisitions >= before[1].1[1] + 500);
        assert!((low..=high).contains(&acquisitions));
        assert_eq!(total > 0, timed);
        // In hundredths of a microsecond, rounded down twice.
        assert!(
            average * acquisitions <= total + acquisitions
                && total < (average + 1) * acquisitions + acquisitions
        );
        free(&machine, 1, Order::ZERO, pages);
    }
}
