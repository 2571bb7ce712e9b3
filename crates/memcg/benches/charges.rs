//! Nanoseconds for what each fault does here: a charge from the CPU's stock and back, and a folio that is
//! listed and taken off again. `cargo bench -p quire-memcg`.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[allow(dead_code, reason = "shared with the tests")]
#[path = "../../frame/tests/common/mod.rs"]
mod common;

use common::{TEST, frames};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, Kind, PcpTechnique};
use quire_memcg::{LruList, MemcgId, MemcgStat, Memcgs};
use std::hint::black_box;
use std::time::Instant;

const COUNT: u64 = 10_000;

fn print(name: &str, mut round: impl FnMut(u64)) {
    let mut figures: Vec<f64> = (0..400)
        .map(|_| {
            let start = Instant::now();
            (0..COUNT).for_each(&mut round);
            start.elapsed().as_nanos() as f64 / COUNT as f64
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    println!("{name:<44} min {:>7.1}  median {:>7.1}", figures[0], figures[figures.len() / 2]);
}

fn main() {
    let memcgs = Memcgs::new(frames(&[(0, 1 << 16)], 2, PcpTechnique::All)).unwrap();
    let id = memcgs.lifecycle().create(memcgs.lifecycle().create(MemcgId::ROOT, "a").unwrap(), "b").unwrap();
    let pin = memcgs.frames().platform().pin();
    let folio = |_| {
        memcgs.frames().allocate(&pin, AllocRequest::new(Order::ZERO, TEST).kind(Kind::Anonymous)).unwrap()
    };
    let heads: Vec<Pfn> = (0..1024).map(folio).collect();
    let head = |nth: u64| heads[(nth % 1024) as usize];
    memcgs.charges().try_charge(&pin, id, 1).unwrap();
    print("try_charge + uncharge, from stock", |_| {
        memcgs.charges().try_charge(&pin, black_box(id), 1).unwrap();
        memcgs.charges().uncharge(&pin, id, 1);
    });
    print("try_charge, refilled every 64", |nth| {
        memcgs.charges().try_charge(&pin, black_box(id), 1).unwrap();
        if nth % 64 == 63 {
            memcgs.charges().uncharge(&pin, id, 64);
        }
    });
    print("try_charge + uncharge, root", |_| {
        memcgs.charges().try_charge(&pin, black_box(MemcgId::ROOT), 1).unwrap();
        memcgs.charges().uncharge(&pin, MemcgId::ROOT, 1);
    });
    print("add_stat", |_| memcgs.counters().add_stat(&pin, black_box(id), MemcgStat::Pgactivate, 1));
    print("list_folio + unlist_folio", |nth| {
        memcgs.folios().list_folio(&pin, head(nth), LruList::InactiveAnon);
        memcgs.folios().unlist_folio(&pin, head(nth));
    });
    print("put_back + unlist_folio, main list", |nth| {
        memcgs.folios().put_back(&pin, head(nth), LruList::InactiveAnon, true);
        memcgs.folios().unlist_folio(&pin, head(nth));
    });
}
