//! Which swap serves a program best.

use super::figures::LimitRow;
use super::setting::LimitSetting;
use super::{Basis, Enough, Limits};
use crate::swap::LimitSwap;

/// The swap with which the program is stalled least within all limits that it fits into, if that is known;
/// one with which predictions were held against Linux.
pub(super) fn best(rows: &[(LimitSetting, LimitRow)]) -> Option<LimitSwap> {
    let cost = |swap: LimitSwap| {
        let mine = || rows.iter().filter(|(setting, _)| setting.swap == swap);
        let figures = || mine().filter_map(|(_, row)| row.figures);
        let stalls: f64 = figures().map(|figures| figures.stall_ns.median).sum();
        // Where it fits more often it is better, whatever that costs.
        (figures().count() > 0).then_some((mine().filter(|(_, row)| !row.fits()).count(), stalls))
    };
    let tried = LimitSwap::ALL.into_iter().filter(|swap| swap.is_validated());
    let costs = tried.filter_map(|swap| Some((swap, cost(swap)?)));
    let least = costs.min_by(|(_, (misfits, stalls)), (_, (other_misfits, other_stalls))| {
        misfits.cmp(other_misfits).then(stalls.total_cmp(other_stalls))
    });
    least.map(|(swap, _)| swap)
}

/// zram in the place of zswap where the pool of that, which the group is charged for, takes what a lower
/// limit saves.
pub(super) fn without_pool(best: LimitSwap, limits: &Limits, basis: Basis) -> LimitSwap {
    let high = |swap| Some(Enough::of(limits, swap, basis.seconds, basis.files)?.high);
    match (best, high(LimitSwap::Zram), high(LimitSwap::Zswap)) {
        (LimitSwap::Zswap, Some(zram), zswap) if zswap.is_none_or(|zswap| zram <= zswap) => LimitSwap::Zram,
        _ => best,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LimitFigures, Need};
    use super::*;
    use crate::range::Range;

    #[test]
    fn zswap_is_best_only_where_its_pool_does_not_take_what_it_saves() {
        let need = Need { anonymous: 100 << 20, stays: 0 };
        let row = |percent, swap, stall: f64, pool: f64| {
            let compressed = Some(Range::of([pool * f64::from(1 << 20)]));
            let figures =
                LimitFigures { stall_ns: Range::of([stall]), compressed, ..LimitFigures::default() };
            (LimitSetting::new(need, percent, swap), LimitRow { figures: Some(figures), does_not_fit: None })
        };
        let second = Range::of([1.0]);
        let chosen = |pool| {
            let (zram, zswap) = (LimitSwap::Zram, LimitSwap::Zswap);
            let rows = vec![
                row(90, zram, 0.0, pool),
                row(90, zswap, 0.0, pool),
                row(25, zram, 1e9, pool),
                row(25, zswap, 0.0, pool),
            ];
            let limits = Limits { rows, ..Limits::default() };
            assert_eq!(best(&limits.rows), Some(zswap));
            without_pool(zswap, &limits, Basis { need, files: 0, seconds: second })
        };
        assert_eq!((chosen(20.0), chosen(70.0)), (LimitSwap::Zswap, LimitSwap::Zram));
    }

    #[test]
    fn the_best_swap_fits_and_stalls_least() {
        let row = |percent, swap, stall: Option<f64>| {
            let figures =
                |stall: f64| LimitFigures { stall_ns: Range::of([stall]), ..LimitFigures::default() };
            let does_not_fit = stall.is_none().then(|| "no memory".to_owned());
            let row = LimitRow { does_not_fit, figures: stall.map(figures) };
            (LimitSetting::new(Need { anonymous: 1 << 20, stays: 0 }, percent, swap), row)
        };
        let (zram, zswap, disk) = (LimitSwap::Zram, LimitSwap::Zswap, LimitSwap::Disk);
        let rows = [row(90, zram, Some(5.0)), row(90, zswap, Some(4.0)), row(90, disk, Some(9.0))];
        assert_eq!(best(&rows), Some(zswap));
        let rows =
            [&rows[..], &[row(50, zram, Some(7.0)), row(50, zswap, None), row(50, disk, Some(9.0))]].concat();
        assert_eq!(best(&rows), Some(zram));
        assert_eq!(best(&[row(90, zram, None)]), None);
    }
}
