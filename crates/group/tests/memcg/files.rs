//! The files of a group, byte for byte.

use crate::common::Machine;
use crate::support::{folio, groups};
use quire_arch::{Order, Platform};
use quire_group::{GroupError, GroupEvent, GroupId, GroupStat, Groups, LruList, Swappiness, WriteOutcome};

fn read(groups: &Groups<Machine>, id: GroupId, name: &str) -> String {
    let mut text = String::new();
    groups.read(id, name, &mut text).unwrap();
    text
}

#[test]
fn limits_read_as_they_were_written_in_whole_pages() {
    let groups = groups(1);
    let id = groups.create(GroupId::ROOT, "a").unwrap();
    for (name, unset) in [
        ("memory.max", "max\n"),
        ("memory.high", "max\n"),
        ("memory.low", "0\n"),
        ("memory.min", "0\n"),
        ("memory.swap.max", "max\n"),
    ] {
        assert_eq!(read(&groups, id, name), unset, "{name}");
        for (text, expected) in [
            ("1M\n", "1048576\n"),
            ("8191", "4096\n"),
            ("4095", "0\n"),
            ("max", "max\n"),
            ("9223372036854775807", "max\n"),
            ("9223372036854771711", "9223372036854767616\n"),
            ("", "0\n"),
        ] {
            assert_eq!(groups.write(id, name, text), Ok(WriteOutcome::Done), "{name} {text:?}");
            assert_eq!(read(&groups, id, name), expected, "{name} {text:?}");
        }
        assert_eq!(groups.write(id, name, "12 pages"), Err(GroupError::BadValue));
        assert_eq!(read(&groups, id, name), "0\n");
    }
}

#[test]
fn numbers_events_and_errors() {
    let groups = groups(1);
    let (a, pin) = (groups.create(GroupId::ROOT, "a").unwrap(), groups.frames().platform().pin());
    let b = groups.create(a, "b").unwrap();
    groups.try_charge(&pin, b, 200).unwrap();
    groups.uncharge(&pin, b, 150);
    groups.drain_stocks(&pin);
    groups.charge_swap(b, 3).unwrap();
    groups.uncharge_swap(b, 1);
    let number = |name| read(&groups, a, name);
    assert_eq!(number("memory.current"), "204800\n");
    assert_eq!(number("memory.peak"), "819200\n");
    assert_eq!(
        (number("memory.swap.current"), number("memory.swap.peak")),
        ("8192\n".into(), "12288\n".into())
    );
    let _ = groups.write(b, "memory.swap.max", "2k").unwrap();
    assert!(groups.charge_swap(b, 1).is_err());
    groups.count(b, GroupEvent::OomKill, 2);
    groups.count(a, GroupEvent::Low, 1);
    let none = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\noom_group_kill 0\n";
    assert_eq!(read(&groups, b, "memory.events"), none);
    assert_eq!(number("memory.events"), "low 1\nhigh 0\nmax 0\noom 0\noom_kill 2\noom_group_kill 0\n");
    assert_eq!(number("memory.events.local"), "low 1\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n");
    assert_eq!(number("memory.swap.events"), "high 0\nmax 1\nfail 1\n");

    assert_eq!(groups.write(a, "memory.max", "40K"), Ok(WriteOutcome::AboveMax { pages: 40 }));
    assert_eq!(groups.write(a, "memory.high", "160K"), Ok(WriteOutcome::AboveHigh { pages: 10 }));
    let reclaim = |text| groups.write(a, "memory.reclaim", text);
    assert_eq!(reclaim("1M"), Ok(WriteOutcome::Reclaim { pages: 256, swappiness: None }));
    let swappiness = Some(Swappiness::Of(60));
    assert_eq!(reclaim(" 4k  swappiness=60\n"), Ok(WriteOutcome::Reclaim { pages: 1, swappiness }));
    let swappiness = Some(Swappiness::Max);
    assert_eq!(reclaim("4k swappiness=max"), Ok(WriteOutcome::Reclaim { pages: 1, swappiness }));
    for bad in ["", "x", "max", "1M x", "1M swappiness=201", "1M swappiness=-1", "1M swappiness="] {
        assert_eq!(reclaim(bad), Err(GroupError::BadValue), "{bad:?}");
    }

    let mut text = String::new();
    assert_eq!(groups.read(a, "memory.reclaim", &mut text), Err(GroupError::WriteOnly));
    assert_eq!(groups.write(a, "memory.current", "1"), Err(GroupError::ReadOnly));
    assert_eq!(groups.read(a, "memory.none", &mut text), Err(GroupError::NoFile));
    assert_eq!(groups.read(GroupId::ROOT, "memory.max", &mut text), Err(GroupError::NoFile));
    let nobody = GroupId::new(77).unwrap();
    assert_eq!(groups.read(nobody, "memory.max", &mut text), Err(GroupError::NoGroup));
}

#[test]
fn statistics_are_of_a_group_and_all_below() {
    let groups = groups(2);
    let a = groups.create(GroupId::ROOT, "a").unwrap();
    let b = groups.create(a, "b").unwrap();
    let c = groups.create(GroupId::ROOT, "c").unwrap();
    crate::common::run_on(1);
    {
        let pin = groups.frames().platform().pin();
        groups.add_stat(&pin, b, GroupStat::Pgrefill, 5);
        groups.add_stat(&pin, c, GroupStat::Pgrefill, 100);
        groups.add_stat(&pin, b, GroupStat::Pgrefill, -1);
        groups.add_stat(&pin, a, GroupStat::PgscanDirect, 3);
        groups.add_stat(&pin, a, GroupStat::PgscanKswapd, 4);
        groups.add_stat(&pin, GroupId::ROOT, GroupStat::Pgfault, 9);
    }
    crate::common::run_on(0);
    let pin = groups.frames().platform().pin();
    groups.add_stat(&pin, b, GroupStat::Pgactivate, -2);
    groups.add_stat(&pin, b, GroupStat::Pswpin, 1234);
    let head = folio(&groups, Order::ALL[2], b);
    groups.list_folio(&pin, head, LruList::InactiveFile);
    let text = read(&groups, a, "memory.stat");
    let names: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let mut expected = "anon inactive_anon active_anon inactive_file active_file unevictable workingset_refault_anon \
        workingset_activate_anon workingset_restore_anon pgscan pgsteal pswpin pswpout pgscan_kswapd pgscan_direct \
        pgscan_proactive pgsteal_kswapd pgsteal_direct pgsteal_proactive pgfault pgmajfault pgrefill pgactivate \
        pgdeactivate pglazyfree pglazyfreed swpin_zero swpout_zero zswpin zswpout thp_fault_alloc thp_collapse_alloc \
        thp_swpout thp_swpout_fallback".split_whitespace();
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
    assert!(read(&groups, GroupId::ROOT, "memory.stat").contains("\npgrefill 104\n"));
}
