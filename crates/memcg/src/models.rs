//! Loom models.

use crate::counter::PageCounter;
use crate::id::MemcgId;
use crate::tagged::TaggedAmount;
use loom::sync::Arc;
use loom::thread;
use quire_sync::atomic::{Ordering, fence};

const A: MemcgId = MemcgId::from_bits(1);
const B: MemcgId = MemcgId::from_bits(2);

/// The owner uses its stock for one memcg and the other while another CPU drains it: no page is lost or
/// duplicated.
#[test]
fn loom_a_stock_that_is_drained_loses_nothing() {
    loom::model(|| {
        let stock = Arc::new(TaggedAmount::default());
        assert_eq!(stock.add(A, 5), None);
        let other = stock.clone();
        let drainer = thread::spawn(move || other.drain(|memcg| memcg == A));
        // What is charged to each memcg in all: in stock, in use, or taken out of the stock.
        let mut sums = [0i64; 2];
        let mut put = |(memcg, pages): (MemcgId, i64)| sums[usize::from(memcg == B)] += pages;
        if stock.take(A, 2) {
            put((A, 2));
        }
        if stock.try_add(A, 1, 10) {
            put((A, -1));
        }
        if let Some(out) = stock.add(B, 4) {
            put(out);
        }
        put((B, -4));
        let drained: Option<(MemcgId, i64)> = drainer.join().ok().flatten();
        drained.into_iter().for_each(&mut put);
        put(stock.get());
        assert_eq!(sums, [5, 0]);
    });
}

/// A page is charged on top of a charge that is about to fail, and moves on to a slot. A thread that looks
/// whether the memcg was charged meanwhile sees the page, or that there was a rise.
#[test]
fn loom_a_charge_beside_one_that_fails_is_seen_as_a_rise() {
    loom::model(|| {
        let counter = Arc::new(PageCounter::new());
        counter.set_max(10);
        let other = counter.clone();
        let failing = thread::spawn(move || assert_eq!(other.try_add(64), None));
        let rises = counter.rises();
        if counter.usage() == 0 {
            counter.add(1);
            counter.sub(1);
            let seen = counter.usage() != 0 || {
                fence(Ordering::Acquire);
                counter.rises() != rises
            };
            assert!(seen, "the charge is missed");
        }
        assert!(failing.join().is_ok());
    });
}
