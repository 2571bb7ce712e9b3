//! Damage planted in anon_vmas: each kind is found, and nothing before.

use super::*;
use crate::flags::VmFlags;
use crate::space_core::{AnonVmaRef, Backing, OfAnonVma, VmaSnapshot};
use quire_arch::{VirtAddr, VirtRange};
use quire_vma_tree::intervals::IntervalTree;
use std::boxed::Box;
use std::vec::Vec;

/// A root with a VMA and two children, one of them without VMAs above a grandchild. Everything is leaked.
struct Scene {
    root: &'static AnonVma,
    empty: &'static AnonVma,
    vmas: Vec<&'static Vma>,
}

fn anon_vma_below(parent: Option<&AnonVma>) -> &'static AnonVma {
    Box::leak(Box::new(AnonVma::new(parent)))
}

fn vma_in(anon_vma: &AnonVma, first: u64) -> &'static Vma {
    let snapshot = VmaSnapshot {
        range: VirtRange::new(VirtAddr(first << 12), VirtAddr((first + 4) << 12)),
        flags: VmFlags::READ,
        page_offset: first,
        backing: Backing::ANONYMOUS,
        // SAFETY: all anon_vmas of a scene are leaked.
        anon: unsafe { AnonVmaRef::new(NonNull::from(anon_vma)) },
    };
    let vma = Box::leak(Box::new(Vma::new(snapshot)));
    anon_vma.enter(vma, &snapshot);
    vma
}

impl Scene {
    fn new() -> Self {
        let root = anon_vma_below(None);
        let empty = anon_vma_below(Some(root));
        let other = anon_vma_below(Some(root));
        let mut vmas: Vec<_> = (0..5).map(|at| vma_in(root, 16 + 4 * at)).collect();
        let leaver = vma_in(empty, 16);
        vmas.push(vma_in(other, 16));
        vmas.push(vma_in(anon_vma_below(Some(empty)), 18));
        assert!(empty.leave(leaver));
        assert!(!empty.put(), "its child holds it");
        let scene = Self { root, empty, vmas };
        assert_eq!(scene.audit(), (4, Vec::new()));
        scene
    }

    fn audit(&self) -> (u64, Vec<AnonVmaViolation>) {
        let mut audit = AnonVmaAudit::default();
        let mut found = Vec::new();
        self.vmas.iter().for_each(|vma| audit.count(vma));
        self.vmas
            .iter()
            .for_each(|vma| AnonVmaAudit::check_anon_vmas(vma, &mut |violation| found.push(violation)));
        self.vmas.iter().for_each(|vma| AnonVmaAudit::clear(vma));
        (audit.anon_vmas(), found)
    }

    #[track_caller]
    fn finds(&self, violation: AnonVmaViolation) {
        let (_, found) = self.audit();
        assert!(found.contains(&violation), "only {found:?}");
    }
}

#[test]
fn a_vma_that_names_an_anon_vma_and_is_not_in_it() {
    let scene = Scene::new();
    scene.root.leave(scene.vmas[0]);
    scene.finds(AnonVmaViolation::Members { expected: 5, found: 4 });
    scene.root.enter(scene.vmas[0], &scene.vmas[0].snapshot());
    assert_eq!(scene.audit(), (4, Vec::new()));
}

#[test]
fn a_vma_that_was_changed_without_its_anon_vma() {
    let scene = Scene::new();
    let snapshot = scene.vmas[0].snapshot();
    scene.vmas[0].set(VmaSnapshot { page_offset: snapshot.page_offset + 1, ..snapshot });
    scene.finds(AnonVmaViolation::Member);
    let longer = VirtRange::new(snapshot.range.start(), VirtAddr(snapshot.range.end().0 + 4096));
    scene.vmas[0].set(VmaSnapshot { range: longer, ..snapshot });
    scene.finds(AnonVmaViolation::Member);
    scene.vmas[0].set(VmaSnapshot { anon: scene.vmas[5].anon(), ..snapshot });
    scene.finds(AnonVmaViolation::Member);
    scene.vmas[0].set(snapshot);
    assert_eq!(scene.audit(), (4, Vec::new()));
}

#[test]
fn a_damaged_tree() {
    let scene = Scene::new();
    // SAFETY: the promise is broken: the VMA, alone in its tree, is in another one. Its place is unlinked,
    // while its own tree goes on to name it. All links still lead to live VMAs.
    unsafe { IntervalTree::<_, OfAnonVma>::new().remove(NonNull::from(scene.vmas[5])) };
    scene.finds(AnonVmaViolation::Tree);
}

#[test]
fn a_child_that_is_not_on_the_list_and_one_without_vmas() {
    let scene = Scene::new();
    scene.empty.unlink_child(scene.root);
    scene.finds(AnonVmaViolation::Children { expected: 2, found: 1 });
    let scene = Scene::new();
    let lost = anon_vma_below(Some(scene.root));
    let vma = vma_in(lost, 40);
    lost.leave(vma);
    scene.finds(AnonVmaViolation::Children { expected: 2, found: 3 });
}

#[test]
fn a_wrong_count_of_references() {
    let scene = Scene::new();
    assert!(scene.root.try_hold());
    scene.finds(AnonVmaViolation::Refs { expected: 3, found: 4 });
    assert!(!scene.root.put());
    assert_eq!(scene.audit(), (4, Vec::new()));
}

#[test]
fn a_wrong_census() {
    let scene = Scene::new();
    let stats = &scene.root.stats;
    stats.vmas.fetch_add(1, Ordering::Relaxed);
    stats.empty.fetch_sub(1, Ordering::Relaxed);
    scene.finds(AnonVmaViolation::FamilyVmas { expected: 7, found: 8 });
    scene.finds(AnonVmaViolation::FamilyEmpty { expected: 1, found: 0 });
}

#[test]
fn a_page_may_be_owned_by_an_anon_vma_above_only() {
    let scene = Scene::new();
    let owner = |anon_vma: &AnonVma| Some(ptr::from_ref(anon_vma).expose_provenance());
    let (below, beside) = (scene.vmas[6], scene.vmas[5]);
    assert!(AnonVmaAudit::may_map(below, owner(scene.root)));
    assert!(AnonVmaAudit::may_map(below, owner(scene.empty)));
    assert!(!AnonVmaAudit::may_map(beside, owner(scene.empty)));
    assert!(!AnonVmaAudit::may_map(below, None));
}
