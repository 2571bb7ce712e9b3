//! How a step of a fault ended.

/// How a step of a fault ended that nothing refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Step {
    /// The access is possible now, or the program tries it again.
    Done,
    /// What the step began with is not there any more, or not as it was: it is to be looked up again.
    LookAgain,
}

/// What came of trying a leaf of the PMD's order for a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HugeFault {
    /// It is mapped.
    Mapped,
    /// There is none, and the fault goes on with a table.
    ByTable,
    /// The same, and of a file it maps the folio of the page only.
    Alone,
}
