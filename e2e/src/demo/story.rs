//! The output of the demo: an introduction, numbered steps, tables as kubectl prints them, a summary, and next steps.
//! Colour only on a terminal.

use std::io::{IsTerminal, Stdout, Write};
use std::time::Instant;

use anyhow::Result;

/// The output so far.
pub(super) struct Story {
    out: Stdout,
    colour: bool,
    started: Instant,
    step: Option<(Instant, String)>,
    shown: Vec<(String, f32)>,
}

/// The heading of the summary.
const SUMMARY: &str = "This demo has shown";

impl Story {
    /// Prints the title and the introduction.
    pub(super) fn begin(title: &str, introduction: &[&str]) -> Result<Self> {
        let out = std::io::stdout();
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut story = Self { out, colour, started: Instant::now(), step: None, shown: Vec::new() };
        let title = story.paint("1", title);
        writeln!(story.out, "{title}\n")?;
        introduction.iter().try_for_each(|line| story.line(line))?;
        Ok(story)
    }

    /// Begins a step. The summary prints `result` if the step succeeds.
    pub(super) fn step(&mut self, title: &str, result: &str) -> Result<()> {
        self.close();
        let number = self.shown.len() + 1;
        let title = self.paint("1;36", &format!("{number}. {title}"));
        writeln!(self.out, "\n{title}")?;
        self.step = Some((Instant::now(), result.to_owned()));
        Ok(())
    }

    /// Prints a line of text.
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{}", format!("   {text}").trim_end())?;
        Ok(())
    }

    /// Prints a command line and the output of the program.
    pub(super) fn command(&mut self, command: &str, output: &str) -> Result<()> {
        let command = self.paint("2", &format!("$ {command}"));
        writeln!(self.out, "   {command}")?;
        output.trim_end().lines().try_for_each(|line| self.line(line))
    }

    /// Prints rows in aligned columns. The first row is the header.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) -> Result<()> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            self.line(&cells.join("   "))?;
        }
        Ok(())
    }

    /// Ends the last step and prints the results of all steps.
    pub(super) fn summary(&mut self) -> Result<()> {
        self.close();
        self.heading(SUMMARY)?;
        let tick = self.paint("32", "ok");
        for (result, seconds) in &self.shown {
            writeln!(self.out, "   {tick}  {result} ({seconds:.1} s)")?;
        }
        writeln!(self.out, "   {} steps in {:.1} s", self.shown.len(), self.started.elapsed().as_secs_f32())?;
        Ok(())
    }

    /// Prints a heading without a number.
    pub(super) fn heading(&mut self, title: &str) -> Result<()> {
        let title = self.paint("1", title);
        writeln!(self.out, "\n{title}")?;
        Ok(())
    }

    fn close(&mut self) {
        if let Some((started, result)) = self.step.take() {
            self.shown.push((result, started.elapsed().as_secs_f32()));
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
