//! How the demo speaks: numbered steps, what each proves, tables as kubectl prints them, a summary. Colour only on a terminal.

use std::io::{IsTerminal, Stdout, Write};
use std::time::Instant;

use anyhow::Result;

/// The story so far.
pub(super) struct Story {
    out: Stdout,
    colour: bool,
    started: Instant,
    step: Option<(Instant, String)>,
    proven: Vec<(String, f32)>,
}

impl Story {
    pub(super) fn begin(title: &str) -> Result<Self> {
        let out = std::io::stdout();
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut story = Self { out, colour, started: Instant::now(), step: None, proven: Vec::new() };
        let title = story.paint("1", title);
        writeln!(story.out, "{title}")?;
        Ok(story)
    }

    /// Opens a step. `proves` is what it has shown when the next step begins.
    pub(super) fn step(&mut self, title: &str, proves: &str) -> Result<()> {
        self.close();
        let number = self.proven.len() + 1;
        let title = self.paint("1;36", &format!("{number}. {title}"));
        writeln!(self.out, "\n{title}")?;
        self.step = Some((Instant::now(), proves.to_owned()));
        Ok(())
    }

    /// A line of the step's text.
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "   {text}")?;
        Ok(())
    }

    /// What a program printed, with the command line that a person would have typed.
    pub(super) fn shown(&mut self, command: &str, output: &str) -> Result<()> {
        let command = self.paint("2", &format!("$ {command}"));
        writeln!(self.out, "   {command}")?;
        for line in output.trim_end().lines() {
            writeln!(self.out, "   {line}")?;
        }
        Ok(())
    }

    /// Rows in aligned columns; the first row is the head.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) -> Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(self.out, "   {}", cells.join("   ").trim_end())?;
        }
        Ok(())
    }

    /// Closes the last step and repeats what has been shown.
    pub(super) fn summary(&mut self) -> Result<()> {
        self.close();
        let head = self.paint("1", "What this has shown");
        writeln!(self.out, "\n{head}")?;
        let tick = self.paint("32", "ok");
        for (proves, seconds) in &self.proven {
            writeln!(self.out, "   {tick}  {proves} ({seconds:.1} s)")?;
        }
        writeln!(self.out, "   {} steps in {:.1} s", self.proven.len(), self.started.elapsed().as_secs_f32())?;
        Ok(())
    }

    fn close(&mut self) {
        if let Some((started, proves)) = self.step.take() {
            self.proven.push((proves, started.elapsed().as_secs_f32()));
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
