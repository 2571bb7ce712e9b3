//! Progress on a terminal; silence in a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quire_output::{Manner, Printed};

/// A bar on stderr while something long runs.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar for the work called `name`, which is counted in `units`.
    pub(crate) fn new(name: &str, units: &str) -> Self {
        // Hidden by itself where stderr is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let template = format!("{{msg}} [{{bar:30}}] {{human_pos}} of {{human_len}} {units}, {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(Printed(name, Manner::Line).to_string());
        Self(bar)
    }

    /// The work is called `name` from now on.
    pub(crate) fn name(&self, name: &str) {
        self.0.set_message(Printed(name, Manner::Line).to_string());
    }

    /// `done` of `total` steps are done.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
