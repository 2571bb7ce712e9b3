//! LRU lists against a model, and splits of what is listed.

use crate::common::{Machine, Random, order};
use crate::support::{assert_sound, folio, give_back, memcgs};
use quire_arch::{NodeId, Order, Pfn, Platform};
use quire_frame::{FrameChain, FrameFlags, SplitError};
use quire_memcg::{Begin, Isolated, LruList, MemcgId, Memcgs, Most};
use std::collections::{BTreeMap, VecDeque};

type Key = (MemcgId, NodeId, LruList);

fn key(memcgs: &Memcgs<Machine>, head: Pfn, list: LruList) -> (MemcgId, NodeId, LruList) {
    let frame = memcgs.frames().known(head);
    let memcg = frame.as_folio().memcg();
    (MemcgId::new(memcg).unwrap(), frame.zone().node(), list)
}

/// All lists, front first, as they are kept.
fn listed(memcgs: &Memcgs<Machine>) -> BTreeMap<String, Vec<Pfn>> {
    let mut lists: BTreeMap<String, Vec<Pfn>> = BTreeMap::new();
    memcgs.audit().for_each_listed(|head, memcg, list| {
        assert_eq!(key(memcgs, head, list).0, memcg);
        lists.entry(format!("{:?}", key(memcgs, head, list))).or_default().push(head);
    });
    lists
}

#[test]
fn lists_are_those_of_a_simple_model() {
    for seed in [1, 0x5eed, 0xfeed_f00d] {
        println!("seed {seed:#x}");
        model(seed);
    }
}

fn model(seed: u64) {
    let memcgs = memcgs(2);
    let frames = memcgs.frames();
    let mut random = Random(seed);
    let ids = [
        MemcgId::ROOT,
        memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap(),
        memcgs.lifecycle().create(MemcgId::ROOT, "b").unwrap(),
    ];
    let mut lists: BTreeMap<Key2, VecDeque<Pfn>> = BTreeMap::new();
    let mut off: Vec<Pfn> = Vec::new();
    for cpu in [0, 1] {
        crate::common::run_on(cpu);
        for nth in 0..60 {
            off.push(folio(&memcgs, order((nth % 4) as u8), ids[nth % 3]));
        }
    }
    let find = |lists: &BTreeMap<Key2, VecDeque<Pfn>>, nth: u64| {
        let all: Vec<Pfn> = lists.values().flatten().copied().collect();
        (!all.is_empty()).then(|| all[nth as usize % all.len()])
    };
    // Where a look at a list goes on.
    let mut hands: BTreeMap<Key2, Pfn> = BTreeMap::new();
    let take = |lists: &mut BTreeMap<Key2, VecDeque<Pfn>>, hands: &mut BTreeMap<Key2, Pfn>, head: Pfn| {
        let (key, at) = lists
            .iter()
            .find_map(|(key, list)| Some((*key, list.iter().position(|&pfn| pfn == head)?)))
            .unwrap();
        let list = lists.get_mut(&key).unwrap();
        list.remove(at);
        if hands.get(&key) == Some(&head) {
            match at.checked_sub(1) {
                Some(before) => hands.insert(key, list[before]),
                None => hands.remove(&key),
            };
        }
        key
    };
    for _ in 0..3000 {
        let cpu = random.below(2) as usize;
        crate::common::run_on(cpu);
        let pin = frames.platform().pin();
        let nth = random.next();
        let list = LruList::ALL[random.below(5) as usize];
        match random.below(8) {
            0..=2 if !off.is_empty() => {
                let head = off.swap_remove(nth as usize % off.len());
                let place = key2(key(&memcgs, head, list));
                if nth.is_multiple_of(3) {
                    let front = nth.is_multiple_of(2);
                    memcgs.folios().put_back(&pin, head, list, front);
                    let list = lists.entry(place).or_default();
                    if front { list.push_front(head) } else { list.push_back(head) }
                } else {
                    memcgs.folios().list_folio(&pin, head, list);
                    if nth % 3 == 1 {
                        assert!(memcgs.folios().move_to(
                            &pin,
                            head,
                            LruList::ALL[nth as usize / 16 % 5],
                            true
                        ));
                        let place = key2(key(&memcgs, head, LruList::ALL[nth as usize / 16 % 5]));
                        lists.entry(place).or_default().push_front(head);
                    } else {
                        lists.entry(place).or_default().push_front(head);
                    }
                    memcgs.folios().take_in(if nth.is_multiple_of(5) { None } else { Some(pin.cpu()) });
                }
            }
            3 => {
                if let Some(head) = find(&lists, nth) {
                    assert!(
                        memcgs.folios().unlist_folio(&pin, head) && !memcgs.folios().unlist_folio(&pin, head)
                    );
                    take(&mut lists, &mut hands, head);
                    off.push(head);
                }
            }
            4 => {
                if let Some(head) = find(&lists, nth) {
                    let list = memcgs.folios().list_of(head).unwrap();
                    if nth % 3 == 1 && list.inactive() == list {
                        assert!(!memcgs.folios().deactivate(&pin, head), "it keeps its place");
                        continue;
                    }
                    let (memcg, node, from) = take(&mut lists, &mut hands, head);
                    let from = LruList::ALL[from];
                    let (to, front) = match nth % 3 {
                        0 => {
                            assert!(memcgs.folios().activate(&pin, head));
                            (from.active(), true)
                        }
                        1 => {
                            assert!(memcgs.folios().deactivate(&pin, head));
                            (from.inactive(), true)
                        }
                        _ => {
                            assert!(memcgs.folios().move_to_back(&pin, head));
                            (from, false)
                        }
                    };
                    let list = lists.entry((memcg, node, to as usize)).or_default();
                    if front { list.push_front(head) } else { list.push_back(head) }
                }
            }
            5 => {
                let (id, node) = (ids[nth as usize % 3], NodeId::new(nth as usize / 3 % 2).unwrap());
                let want = |pfn: Pfn| !pfn.0.is_multiple_of(3);
                let begin = if nth % 11 < 4 { Begin::Oldest } else { Begin::WhereLeft };
                let mut taken = Vec::new();
                let got = memcgs.folios().isolate(
                    &pin,
                    (id, node, list),
                    (begin, Most::folios(4)),
                    want,
                    &mut taken,
                );
                let place = (id, node, list as usize);
                let model = lists.entry(place).or_default();
                let from = hands.get(&place).filter(|_| begin == Begin::WhereLeft);
                let seen =
                    from.map_or(model.len(), |hand| 1 + model.iter().position(|on| on == hand).unwrap());
                let looked: Vec<Pfn> = model.iter().take(seen).rev().take(4).copied().collect();
                match seen.checked_sub(5) {
                    Some(hand) => hands.insert(place, model[hand]),
                    None => hands.remove(&place),
                };
                let (expected, mut counts) =
                    (looked.iter().copied().filter(|&head| want(head)), Isolated::default());
                let expected: Vec<Pfn> = expected.collect();
                let pages = |heads: &[Pfn]| {
                    heads.iter().map(|&head| frames.known(head).word().order().pages()).sum::<u64>()
                };
                counts.folios = looked.len() as u32;
                (counts.scanned, counts.taken) = (pages(&looked), pages(&expected));
                assert_eq!((&taken, got), (&expected, counts));
                model.retain(|head| !expected.contains(head));
                for head in taken {
                    assert_eq!((frames.known(head).refs(), memcgs.folios().list_of(head)), (2, None));
                    frames.known(head).put(1);
                    off.push(head);
                }
            }
            _ => {}
        }
        drop(pin);
        lists.retain(|_, list| !list.is_empty());
        let expected: BTreeMap<String, Vec<Pfn>> = lists
            .iter()
            .map(|(&(memcg, node, list), heads)| {
                (format!("{:?}", (memcg, node, LruList::ALL[list])), heads.iter().copied().collect())
            })
            .collect();
        assert_eq!(listed(&memcgs), expected);
    }
    assert_sound(&memcgs);
    let pin = frames.platform().pin();
    for head in lists.into_values().flatten() {
        assert!(memcgs.folios().unlist_folio(&pin, head));
        off.push(head);
    }
    drop(pin);
    off.into_iter().for_each(|head| give_back(&memcgs, head));
    crate::common::assert_sound(frames);
    assert_eq!(memcgs.folios().subtree_sizes(MemcgId::ROOT), [0; 5]);
}

type Key2 = (MemcgId, NodeId, usize);

fn key2((memcg, node, list): Key) -> Key2 {
    (memcg, node, list as usize)
}

#[test]
fn a_listed_folio_is_not_given_back_and_one_being_given_back_is_not_taken() {
    let memcgs = memcgs(1);
    let frames = memcgs.frames();
    let pin = frames.platform().pin();
    let head = folio(&memcgs, Order::ZERO, MemcgId::ROOT);
    memcgs.folios().list_folio(&pin, head, LruList::ActiveAnon);
    assert!(frames.free(&pin, head, Order::ZERO).is_err());
    memcgs.folios().take_in(None);
    let node = frames.known(head).zone().node();
    let place = (MemcgId::ROOT, node, LruList::ActiveAnon);
    frames.known(head).put(1);
    let mut taken = Vec::new();
    let got = memcgs.folios().isolate(&pin, place, (Begin::Oldest, Most::folios(9)), |_| true, &mut taken);
    assert_eq!((got, taken.len()), (Isolated { scanned: 1, taken: 0, folios: 1 }, 0));
    assert_eq!(memcgs.folios().sizes(MemcgId::ROOT, node), [0, 1, 0, 0, 0]);
    assert!(memcgs.folios().unlist_folio(&pin, head));
    frames.free(&pin, head, Order::ZERO).unwrap();
}

/// Hazard: a page is freed lazily while reclaim has it, and goes back to the lists of what needs swap.
#[test]
fn what_was_freed_lazily_while_it_was_isolated_is_put_back_where_it_needs_no_swap() {
    let memcgs = memcgs(1);
    let pin = memcgs.frames().platform().pin();
    let heads = [LruList::InactiveAnon, LruList::ActiveAnon, LruList::Unevictable].map(|list| {
        let head = folio(&memcgs, Order::ZERO, MemcgId::ROOT);
        memcgs.folios().list_folio(&pin, head, list);
        assert!(memcgs.folios().unlist_folio(&pin, head));
        memcgs.frames().known(head).set_flags(FrameFlags::LAZY_FREE);
        memcgs.folios().put_back(&pin, head, list, true);
        head
    });
    let lists = [LruList::InactiveFile, LruList::ActiveFile, LruList::Unevictable];
    assert_eq!(heads.map(|head| memcgs.folios().list_of(head)), lists.map(Some));
    assert!(memcgs.folios().move_to(&pin, heads[2], LruList::InactiveAnon, true), "munlock");
    assert!(memcgs.folios().deactivate(&pin, heads[1]));
    assert_eq!(heads.map(|head| memcgs.folios().list_of(head)), [Some(LruList::InactiveFile); 3]);
    assert_sound(&memcgs);
    drop(pin);
    for head in heads {
        assert!(memcgs.folios().unlist_folio(&memcgs.frames().platform().pin(), head));
        give_back(&memcgs, head);
    }
}

#[test]
fn what_a_cpu_lists_touches_no_other_list_before_a_scan() {
    let memcgs = memcgs(2);
    assert!(!memcgs.folios().lists_anonymous());
    memcgs.folios().start_listing();
    assert!(memcgs.folios().lists_anonymous());
    let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let frames = memcgs.frames();
    let heads: Vec<Pfn> = (0..100).map(|_| folio(&memcgs, Order::ZERO, id)).collect();
    let pin = frames.platform().pin();
    for &head in &heads {
        memcgs.folios().list_folio(&pin, head, LruList::InactiveAnon);
        assert_eq!(memcgs.folios().list_of(head), Some(LruList::InactiveAnon));
    }
    assert!(memcgs.folios().unlist_folio(&pin, heads[0]) && memcgs.folios().activate(&pin, heads[1]));
    assert_eq!((memcgs.folios().incoming_folios(&pin), memcgs.folios().subtree_sizes(id)), (99, [0; 5]));
    assert_sound(&memcgs);
    memcgs.folios().take_in(None);
    assert_eq!(
        (memcgs.folios().incoming_folios(&pin), memcgs.folios().subtree_sizes(id)),
        (0, [98, 1, 0, 0, 0])
    );
    assert_sound(&memcgs);
}

/// Hazard: all that a CPU has listed since the last scan is taken in with interrupts off.
#[test]
fn folios_are_taken_in_under_short_pins() {
    let memcgs = memcgs(1);
    let ids = ["a", "b"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
    let heads: Vec<Pfn> = (0..1000).map(|nth| folio(&memcgs, Order::ZERO, ids[nth / 300 % 2])).collect();
    for &head in &heads {
        memcgs.folios().list_folio(&memcgs.frames().platform().pin(), head, LruList::InactiveAnon);
    }
    let ((), holds) = crate::common::most_holds_under_a_pin(|| memcgs.folios().take_in(None));
    assert!((1..=3).contains(&holds), "{holds} locks under one pin");
    assert_eq!(memcgs.folios().incoming_folios(&memcgs.frames().platform().pin()), 0);
    assert_eq!(ids.map(|id| memcgs.folios().subtree_sizes(id)[0]), [600, 400]);
    assert_sound(&memcgs);
}

/// Maps every page of `mapped`, and begins a split of the folio.
fn split(
    memcgs: &Memcgs<Machine>,
    head: Pfn,
    mapped: &[u64],
    to: Order,
    all: bool,
) -> (Result<(), SplitError>, u64) {
    let frames = memcgs.frames();
    let pin = frames.platform().pin();
    let locked = frames.folios().lock_head(head);
    if locked.maps() == 0 {
        assert!(locked.add_maps(mapped.len() as u32));
    }
    let mut split = frames.folios().begin_split(locked);
    mapped.iter().for_each(|&nth| split.count_map(nth));
    let mut unmapped = FrameChain::new();
    let done = if all {
        memcgs.folios().split_folio(&pin, split, (to, 0, false), &mut unmapped, None)
    } else {
        split.finish(to, 0, false, &mut unmapped)
    };
    let pages = unmapped.pages();
    frames.free_chain(&pin, unmapped);
    (done, pages)
}

#[test]
fn parts_of_a_listed_folio_are_listed_in_its_place() {
    for (to, taken_in) in [(0, true), (0, false), (1, true), (1, false)] {
        let memcgs = memcgs(1);
        let frames = memcgs.frames();
        let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
        let head = folio(&memcgs, order(3), id);
        let pin = frames.platform().pin();
        memcgs.folios().list_folio(&pin, head, LruList::ActiveAnon);
        if taken_in {
            memcgs.folios().take_in(None);
        }
        // Pages 2 and 3 are not mapped.
        let mapped = [0, 1, 4, 5, 6, 7];
        assert_eq!(split(&memcgs, head, &mapped, order(to), true), (Ok(()), 2));
        memcgs.charges().drain_stocks(&pin);
        assert_eq!(memcgs.charges().charged(id), 6);
        assert_sound(&memcgs);
        for page in mapped.into_iter().filter(|page| page % (1 << to) == 0) {
            let frame = frames.known(Pfn(head.0 + page));
            assert_eq!(frame.word().order(), order(to));
            assert_eq!(MemcgId::from_bits(frame.as_folio().memcg()), id);
            assert!(frame.word().flags().contains(FrameFlags::LRU | FrameFlags::ACTIVE));
        }
        memcgs.folios().take_in(None);
        assert_eq!(memcgs.folios().subtree_sizes(id), [0, 6, 0, 0, 0]);
        assert_sound(&memcgs);
    }
}

/// Hazard: the parts of an old folio are the youngest of their list, and all others are reclaimed before
/// them.
#[test]
fn parts_of_an_old_folio_are_reclaimed_before_younger_folios() {
    for taken_in in [true, false] {
        let memcgs = memcgs(1);
        let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
        let heads = [0, 3, 0].map(|number| folio(&memcgs, order(number), id));
        let pin = memcgs.frames().platform().pin();
        for head in heads {
            memcgs.folios().list_folio(&pin, head, LruList::InactiveAnon);
        }
        if taken_in {
            memcgs.folios().take_in(None);
        }
        let [older, head, younger] = heads;
        assert_eq!(split(&memcgs, head, &[0, 1, 2, 3, 4, 5, 6, 7], order(1), true), (Ok(()), 0));
        assert_sound(&memcgs);
        memcgs.folios().take_in(None);
        let mut seen = Vec::new();
        memcgs.audit().for_each_listed(|pfn, _, _| seen.push(pfn));
        // From the oldest on.
        seen.reverse();
        let parts = [0, 6, 4, 2].map(|nth| Pfn(head.0 + nth));
        assert_eq!(seen, [&[older][..], &parts, &[younger]].concat());
        assert_sound(&memcgs);
    }
}

#[test]
fn a_folio_counts_as_it_was_until_its_split_is_told() {
    for taken_in in [false, true] {
        let memcgs = memcgs(1);
        let frames = memcgs.frames();
        let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
        let head = folio(&memcgs, order(3), id);
        let pin = frames.platform().pin();
        memcgs.folios().list_folio(&pin, head, LruList::InactiveAnon);
        if taken_in {
            memcgs.folios().take_in(None);
        }
        assert_eq!(split(&memcgs, head, &[0, 1, 2, 3, 4, 5, 6, 7], order(1), false), (Ok(()), 0));
        // Others may have moved it meanwhile.
        memcgs.folios().take_in(None);
        assert!(memcgs.folios().activate(&pin, head));
        assert_eq!(memcgs.folios().subtree_sizes(id), [0, 8, 0, 0, 0]);
        assert_eq!(memcgs.folios().folio_was_split(&pin, head), Some(LruList::ActiveAnon));
        assert_eq!(memcgs.folios().folio_was_split(&pin, Pfn(head.0 + 2)), None);
        assert_eq!(memcgs.folios().subtree_sizes(id), [0, 2, 0, 0, 0]);
        assert_sound(&memcgs);
        assert!(memcgs.folios().unlist_folio(&pin, head));
        assert_eq!(memcgs.folios().subtree_sizes(id), [0; 5]);
    }
}

#[test]
fn a_split_that_fails_changes_nothing() {
    let memcgs = memcgs(1);
    let id = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let head = folio(&memcgs, order(3), id);
    let pin = memcgs.frames().platform().pin();
    memcgs.folios().list_folio(&pin, head, LruList::InactiveAnon);
    memcgs.folios().take_in(None);
    assert!(memcgs.frames().known(head).get(1));
    assert_eq!(split(&memcgs, head, &[0, 1], order(0), true), (Err(SplitError::Busy), 0));
    assert_eq!(memcgs.folios().subtree_sizes(id), [8, 0, 0, 0, 0]);
    assert_sound(&memcgs);
}

#[test]
fn the_clock_goes_on_at_all_above() {
    let memcgs = memcgs(1);
    let a = memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap();
    let b = memcgs.lifecycle().create(a, "b").unwrap();
    let node = NodeId::new(1).unwrap();
    memcgs.folios().advance(b, node, 5);
    memcgs.folios().advance(a, node, 2);
    memcgs.folios().advance(MemcgId::ROOT, node, 1);
    assert_eq!([b, a, MemcgId::ROOT].map(|id| memcgs.folios().age(id, node)), [5, 7, 8]);
    assert_eq!(memcgs.folios().age(b, NodeId::FIRST), 0);
    memcgs.lifecycle().remove(b).unwrap();
    let c = memcgs.lifecycle().create(a, "c").unwrap();
    assert_eq!((c, memcgs.folios().age(c, node)), (b, 0));
}
