//! Loom models.

use crate::id::GroupId;
use crate::tagged::TaggedAmount;
use loom::sync::Arc;
use loom::thread;

const A: GroupId = GroupId::from_bits(1);
const B: GroupId = GroupId::from_bits(2);

/// The owner uses its stock for one group and the other while somebody drains it: no page is lost, none is there twice.
#[test]
fn loom_a_stock_that_is_drained_loses_nothing() {
    loom::model(|| {
        let stock = Arc::new(TaggedAmount::default());
        assert_eq!(stock.add(A, 5), None);
        let other = stock.clone();
        let drainer = thread::spawn(move || other.drain(|group| group == A));
        // What is charged to each group in all: in stock, in use, or taken out of the stock.
        let mut sums = [0i64; 2];
        let mut put = |(group, pages): (GroupId, i64)| sums[usize::from(group == B)] += pages;
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
        let drained: Option<(GroupId, i64)> = drainer.join().ok().flatten();
        drained.into_iter().for_each(&mut put);
        put(stock.get());
        assert_eq!(sums, [5, 0]);
    });
}
