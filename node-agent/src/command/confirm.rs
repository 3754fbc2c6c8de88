//! The question before a step that can assign an address twice.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

#[derive(Args, Debug)]
pub(super) struct Confirm {
    /// Do not ask for a confirmation
    #[arg(long)]
    yes: bool,
}

impl Confirm {
    /// Asks `question` on standard error, and reads the answer from standard input.
    ///
    /// # Errors
    /// The answer is not yes, or standard input is no terminal.
    pub(super) fn ask(&self, question: &str) -> Result<(), String> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(format!("{question} Add --yes to confirm"));
        }
        let failed = |error: io::Error| format!("cannot ask: {error}");
        write!(io::stderr(), "{question} [y/N] ").map_err(failed)?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(failed)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err("nothing was changed".to_owned()),
        }
    }
}
