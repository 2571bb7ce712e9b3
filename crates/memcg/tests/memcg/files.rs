//! The files of a memcg, byte for byte.

use crate::common::Machine;
use crate::support::{folio, folio_of, memcgs};
use quire_arch::{Order, Platform};
use quire_frame::{FrameFlags, Kind, VmEvent};
use quire_memcg::{
    Limit, LruList, MachinePages, MemcgError, MemcgEvent, MemcgId, MemcgStat, Memcgs, WriteOutcome,
};

fn read(memcgs: &Memcgs<Machine>, id: MemcgId, name: &str) -> String {
    let mut text = String::new();
    memcgs.files().read(id, name, None, MachinePages::default, &mut text).unwrap();
    text
}

#[test]
fn limits_read_as_they_were_written_in_whole_pages() {
    let memcgs = memcgs(1);
    let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    for (name, unset) in [
        ("memory.max", "max\n"),
        ("memory.high", "max\n"),
        ("memory.low", "0\n"),
        ("memory.min", "0\n"),
        ("memory.swap.high", "max\n"),
        ("memory.swap.max", "max\n"),
    ] {
        assert_eq!(memcgs.files().write(id, name, ""), Ok(WriteOutcome::Done));
        assert_eq!(read(&memcgs, id, name), unset, "{name}");
        for (text, expected) in [
            ("1M\n", "1048576\n"),
            ("8191", "4096\n"),
            ("4095", "0\n"),
            ("max", "max\n"),
            ("9223372036854775807", "max\n"),
            ("9223372036854771711", "9223372036854767616\n"),
            ("\n", "0\n"),
            // Nothing was written.
            ("", "0\n"),
        ] {
            assert_eq!(memcgs.files().write(id, name, text), Ok(WriteOutcome::Done), "{name} {text:?}");
            assert_eq!(read(&memcgs, id, name), expected, "{name} {text:?}");
        }
        assert_eq!(memcgs.files().write(id, name, "12 pages"), Err(MemcgError::BadValue));
        assert_eq!(read(&memcgs, id, name), "0\n");
    }
}

#[test]
fn the_switch_of_a_group_reads_as_it_was_written() {
    let memcgs = memcgs(1);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let write = |text| memcgs.files().write(a, "memory.oom.group", text);
    assert_eq!(read(&memcgs, a, "memory.oom.group"), "0\n");
    assert_eq!(write(" 0x1\n"), Ok(WriteOutcome::Done));
    for (bad, error) in [
        ("2", MemcgError::BadValue),
        ("\n", MemcgError::BadValue),
        ("max", MemcgError::BadValue),
        ("4294967297", MemcgError::OutOfRange),
    ] {
        assert_eq!(write(bad), Err(error), "{bad:?}");
        assert_eq!(read(&memcgs, a, "memory.oom.group"), "1\n");
    }
    assert_eq!(memcgs.files().write(MemcgId::ROOT, "memory.oom.group", "1"), Err(MemcgError::NoFile));
    // The next memcg with its number begins without.
    memcgs.lifecycle().remove(a).unwrap();
    (0..4).for_each(|_| memcgs.lifecycle().sweep());
    assert_eq!(memcgs.lifecycle().create(MemcgId::ROOT, "b"), Ok(a));
    assert_eq!(read(&memcgs, a, "memory.oom.group"), "0\n");
}

/// The machine has two nodes.
#[test]
fn pages_are_told_by_node() {
    let memcgs = memcgs(1);
    let [a, b, c] = crate::support::family(&memcgs);
    let other = memcgs.lifecycle().create(MemcgId::ROOT, "other").unwrap();
    let pin = memcgs.frames().platform().pin();
    let list = |head| {
        memcgs.folios().list_folio(&pin, head, LruList::ActiveAnon);
        head
    };
    let anon = |order, id| list(folio(&memcgs, order, id));
    let shared = |order, id| {
        let head = folio_of(&memcgs, order, id, Kind::Shmem);
        let frame = memcgs.frames().known(head);
        memcgs.folios().own_file_page(&pin, frame, id);
        frame.set_flags(FrameFlags::SHARED_BY_NAME);
        head
    };
    let node_of = |head| memcgs.frames().known(head).zone().node().index();
    // The first node's memory, until it is used up.
    let first = anon(Order::ALL[2], b);
    anon(Order::ALL[0], other);
    shared(Order::ALL[1], c);
    while node_of(anon(Order::ALL[9], other)) == node_of(first) {}
    while node_of(anon(Order::ALL[3], other)) == node_of(first) {}
    let second = anon(Order::ALL[3], c);
    shared(Order::ALL[4], a);
    shared(Order::PMD, a);
    assert_eq!((node_of(first), node_of(second)), (0, 1));
    // It has left the cache of its file, for a swap device.
    let out = shared(Order::ALL[0], c);
    memcgs.folios().disown_file_page(&pin, memcgs.frames().known(out));
    memcgs.frames().known(out).clear_flags(FrameFlags::SHARED_BY_NAME);
    let told = read(&memcgs, a, "memory.numa_stat");
    let expected = "anon N0=16384 N1=32768\nfile N0=8192 N1=2162688\nshmem N0=8192 N1=2162688\n\
        file_thp N0=0 N1=0\nshmem_thp N0=0 N1=2097152\n\
        inactive_anon N0=0 N1=0\nactive_anon N0=16384 N1=32768\ninactive_file N0=0 N1=0\n\
        active_file N0=0 N1=0\nunevictable N0=0 N1=0\n";
    assert_eq!(told, expected);
    let root = read(&memcgs, MemcgId::ROOT, "memory.numa_stat");
    assert!(
        root.contains("\nshmem N0=8192 N1=2162688\nfile_thp N0=0 N1=0\nshmem_thp N0=0 N1=2097152\n"),
        "{root}"
    );
    assert_eq!(memcgs.files().write(a, "memory.numa_stat", "1"), Err(MemcgError::ReadOnly));
}

/// Each open file has a peak of its own, and so has one that was never written to.
#[test]
fn a_write_resets_the_peak_of_one_open_file() {
    let memcgs = memcgs(1);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let swap = |now: u64| match now.checked_sub(memcgs.charges().swap_usage(a)) {
        Some(more) => memcgs.charges().charge_swap(a, more).unwrap(),
        None => memcgs.charges().uncharge_swap(a, memcgs.charges().swap_usage(a) - now),
    };
    let open = |text| match memcgs.files().write(a, "memory.swap.peak", text) {
        Ok(WriteOutcome::PeakReset(peak)) => Some(peak),
        other => panic!("{other:?}"),
    };
    let peak = |since| {
        let mut text = String::new();
        memcgs.files().read(a, "memory.swap.peak", since, MachinePages::default, &mut text).unwrap();
        text.trim().parse::<u64>().unwrap() / 4096
    };
    swap(10);
    swap(2);
    let first = open("\n");
    assert_eq!((peak(None), peak(first)), (10, 2));
    swap(7);
    swap(3);
    let second = open("whatever");
    assert_eq!((peak(None), peak(first), peak(second)), (10, 7, 3));
    swap(5);
    assert_eq!((peak(None), peak(first), peak(second)), (10, 7, 5));
    swap(0);
    let first = open("1");
    swap(4);
    assert_eq!((peak(None), peak(first), peak(second)), (10, 4, 5));
    swap(11);
    assert_eq!((peak(None), peak(first), peak(second)), (11, 11, 11));
    // A write of nothing is none; the other peak is its own; the root has none.
    assert_eq!(memcgs.files().write(a, "memory.swap.peak", ""), Ok(WriteOutcome::Done));
    assert_eq!(read(&memcgs, a, "memory.peak"), "0\n");
    assert_eq!(memcgs.files().write(MemcgId::ROOT, "memory.peak", "1"), Err(MemcgError::NoFile));
}

#[test]
fn numbers_events_and_errors() {
    let memcgs = memcgs(1);
    let (a, pin) = (memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap(), memcgs.frames().platform().pin());
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    memcgs.charges().try_charge(&pin, b, 200).unwrap();
    memcgs.charges().uncharge(&pin, b, 150);
    memcgs.charges().drain_stocks(&pin);
    memcgs.charges().charge_swap(b, 3).unwrap();
    memcgs.charges().uncharge_swap(b, 1);
    let number = |name| read(&memcgs, a, name);
    assert_eq!(number("memory.current"), "204800\n");
    assert_eq!(number("memory.peak"), "819200\n");
    assert_eq!(
        (number("memory.swap.current"), number("memory.swap.peak")),
        ("8192\n".into(), "12288\n".into())
    );
    let _ = memcgs.files().write(b, "memory.swap.max", "2k").unwrap();
    assert!(memcgs.charges().charge_swap(b, 1).is_err());
    memcgs.counters().count(b, MemcgEvent::OomKill, 2);
    memcgs.counters().count(a, MemcgEvent::Low, 1);
    let expected = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\noom_group_kill 0\n";
    assert_eq!(read(&memcgs, b, "memory.events"), expected);
    assert_eq!(number("memory.events"), "low 1\nhigh 0\nmax 0\noom 0\noom_kill 2\noom_group_kill 0\n");
    assert_eq!(number("memory.events.local"), "low 1\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n");
    assert_eq!(number("memory.swap.events"), "high 0\nmax 1\nfail 1\n");

    assert_eq!(memcgs.files().write(a, "memory.max", "40K"), Ok(WriteOutcome::AboveMax));
    assert_eq!(memcgs.files().pages_over(a, Limit::Max), 40);
    assert_eq!(memcgs.files().write(a, "memory.high", "160K"), Ok(WriteOutcome::AboveHigh));
    assert_eq!(memcgs.files().pages_over(a, Limit::High), 10);
    let reclaim = |text| memcgs.files().write(a, "memory.reclaim", text);
    assert_eq!(reclaim("1M"), Ok(WriteOutcome::Reclaim { pages: 256 }));
    assert_eq!(reclaim(" 4k \n"), Ok(WriteOutcome::Reclaim { pages: 1 }));
    for bad in ["x", "max", "1M x", "1M swappiness=60", "1M swappiness=max"] {
        assert_eq!(reclaim(bad), Err(MemcgError::BadValue), "{bad:?}");
    }

    let (mut text, none) = (String::new(), MachinePages::default);
    assert_eq!(memcgs.files().read(a, "memory.reclaim", None, none, &mut text), Err(MemcgError::WriteOnly));
    assert_eq!(memcgs.files().write(a, "memory.current", "1"), Err(MemcgError::ReadOnly));
    assert_eq!(memcgs.files().read(a, "memory.none", None, none, &mut text), Err(MemcgError::NoFile));
    assert_eq!(
        memcgs.files().read(MemcgId::ROOT, "memory.max", None, none, &mut text),
        Err(MemcgError::NoFile)
    );
    let missing = MemcgId::new(77).unwrap();
    assert_eq!(memcgs.files().read(missing, "memory.max", None, none, &mut text), Err(MemcgError::NoMemcg));
}

/// As Linux 6.18's: the switch is at the root, too.
#[test]
fn the_files_of_compressed_caches() {
    let memcgs = memcgs(1);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    let files = ["current", "max", "writeback"].map(|file| format!("memory.zswap.{file}"));
    assert_eq!(files.each_ref().map(|file| read(&memcgs, a, file)), ["0\n", "max\n", "1\n"]);
    let none = MachinePages::default;
    for (file, expected) in files.iter().zip([Err(MemcgError::NoFile), Err(MemcgError::NoFile), Ok(())]) {
        let found = memcgs.files().read(MemcgId::ROOT, file, None, none, &mut String::new());
        assert_eq!(found, expected, "{file}");
    }
    let write = |id, file: &str, text| memcgs.files().write(id, file, text).map(drop);
    assert_eq!(write(a, "memory.zswap.max", "5000"), Ok(()));
    assert_eq!(read(&memcgs, a, "memory.zswap.max"), "4096\n");
    assert_eq!(write(a, "memory.zswap.max", "some"), Err(MemcgError::BadValue));
    assert_eq!(write(a, "memory.zswap.current", "1"), Err(MemcgError::ReadOnly));
    assert_eq!(write(a, "memory.zswap.writeback", "2"), Err(MemcgError::BadValue));
    let pin = memcgs.frames().platform().pin();
    let zswap = memcgs.zswap();
    memcgs.zswap().count(&pin, b, (4095, 2));
    assert!(zswap.may_store(b) && zswap.may_store(a));
    assert_eq!(read(&memcgs, a, "memory.zswap.current"), "4095\n");
    let stat = read(&memcgs, a, "memory.stat");
    assert!(stat.contains("\nzswap 4095\nzswapped 8192\n"), "{stat}");
    memcgs.zswap().count(&pin, b, (1, 1));
    assert!(!zswap.may_store(b), "the one above is full");
    assert_eq!(write(a, "memory.zswap.max", "0"), Ok(()));
    memcgs.zswap().count(&pin, b, (-4096, -3));
    assert!(!zswap.may_store(b) && zswap.may_store(MemcgId::ROOT));
    for (id, text, expected) in [(a, "0", false), (a, "1", true), (MemcgId::ROOT, "0", false)] {
        assert_eq!(write(id, "memory.zswap.writeback", text), Ok(()));
        assert_eq!(zswap.writes_back(b), expected);
        assert_eq!(read(&memcgs, b, "memory.zswap.writeback"), "1\n", "its own switch is on");
    }
}

#[test]
fn statistics_are_of_a_memcg_and_all_below() {
    let memcgs = memcgs(2);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    let c = memcgs.lifecycle().create(MemcgId::ROOT, "c").unwrap();
    crate::common::run_on(1);
    {
        let pin = memcgs.frames().platform().pin();
        memcgs.counters().add_stat(&pin, b, MemcgStat::Pgrefill, 5);
        memcgs.counters().add_stat(&pin, c, MemcgStat::Pgrefill, 100);
        memcgs.counters().add_stat(&pin, b, MemcgStat::Pgrefill, -1);
        memcgs.counters().add_stat(&pin, a, MemcgStat::PgscanDirect, 3);
        memcgs.counters().add_stat(&pin, a, MemcgStat::PgscanKswapd, 4);
        memcgs.counters().add_stat(&pin, MemcgId::ROOT, MemcgStat::Pgfault, 9);
    }
    crate::common::run_on(0);
    let pin = memcgs.frames().platform().pin();
    memcgs.counters().add_stat(&pin, b, MemcgStat::Pgactivate, -2);
    memcgs.counters().add_stat(&pin, b, MemcgStat::Pswpin, 1234);
    let head = folio(&memcgs, Order::ALL[2], b);
    memcgs.folios().list_folio(&pin, head, LruList::InactiveFile);
    let text = read(&memcgs, a, "memory.stat");
    let names: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let mut expected = "anon file shmem zswap zswapped file_thp shmem_thp inactive_anon active_anon inactive_file active_file \
        unevictable workingset_refault_anon workingset_activate_anon workingset_restore_anon pgscan pgsteal \
        pswpin pswpout pgscan_kswapd pgscan_direct \
        pgscan_proactive pgsteal_kswapd pgsteal_direct pgsteal_proactive pgfault pgmajfault pgrefill pgactivate \
        pgdeactivate pglazyfree pglazyfreed swpin_zero swpout_zero zswpin zswpout zswpwb thp_fault_alloc \
        thp_collapse_alloc thp_swpout thp_swpout_fallback".split_whitespace();
    assert!(names.iter().all(|&name| expected.next() == Some(name)) && expected.next().is_none());
    let set: Vec<&str> = text.lines().filter(|line| !line.ends_with(" 0")).collect();
    assert_eq!(
        set,
        [
            "anon 16384",
            "inactive_file 16384",
            "pgscan 7",
            "pswpin 1234",
            "pgscan_kswapd 4",
            "pgscan_direct 3",
            "pgrefill 4"
        ]
    );
    memcgs.counters().add_stat(&pin, MemcgId::ROOT, MemcgStat::Pgrefill, 6);
    memcgs.frames().events().add(&pin, VmEvent::Pgfault, 11);
    let root = read(&memcgs, MemcgId::ROOT, "memory.stat");
    assert!(root.contains("\npgrefill 110\n") && root.contains("\npgfault 11\n"), "{root}");
}
