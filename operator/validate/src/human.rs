//! A report as text. Each error is a line that begins with its place, as compilers write it, so that editors find the place.
//! Control characters of a manifest never reach a terminal.

use std::fmt::{self, Write};

use ipam_core::words::counted;

use super::plan::{Fit, Share};
use super::report::{Origin, PoolReport, Problem, Report, Warning};

/// Most lines about one pool; `-o json` has more.
const MAX_LINES: usize = 50;

/// Writes `report` for people.
pub fn write(report: &Report, out: &mut impl Write) -> fmt::Result {
    for stray in &report.strays {
        let place = stray.problem.place;
        let field = if stray.problem.field.is_empty() { String::new() } else { format!("{}: ", stray.problem.field) };
        line(
            out,
            &format!("{}:{place}: {}: {field}{}", stray.origin.file, which(&stray.origin), stray.problem.message),
        )?;
    }
    for pool in &report.pools {
        self::pool(pool, out)?;
    }
    for network in &report.networks {
        let about = About { origin: &network.origin, title: network.title() };
        about.findings(&network.problems, 0, &network.warnings, out)?;
    }
    line(out, &summary(report))
}

/// The object that lines are about.
struct About<'a> {
    origin: &'a Origin,
    title: String,
}

impl About<'_> {
    fn findings(&self, problems: &[Problem], untold: usize, warnings: &[Warning], out: &mut impl Write) -> fmt::Result {
        let (file, whose) = (&self.origin.file, self.whose());
        for problem in problems.iter().take(MAX_LINES) {
            line(out, &format!("{file}:{}: {whose}: {}: {}", problem.place, problem.field, problem.message))?;
        }
        let untold = untold + problems.len().saturating_sub(MAX_LINES);
        if untold > 0 {
            let more = counted(untold, "more error", "more errors");
            line(out, &format!("{}: and {more}", self.start()))?;
        }
        for warning in warnings.iter().take(MAX_LINES) {
            line(out, &format!("{file}:{}: {whose}: warning: {}: {}", warning.place, warning.field, warning.message))?;
        }
        if warnings.len() > MAX_LINES {
            let more = counted(warnings.len() - MAX_LINES, "more warning", "more warnings");
            line(out, &format!("{}: and {more}", self.start()))?;
        }
        Ok(())
    }

    fn whose(&self) -> String {
        format!("{}, {}", which(self.origin), self.title)
    }

    /// The begin of a line about the object as a whole.
    fn start(&self) -> String {
        format!("{}:{}: {}", self.origin.file, self.origin.place, self.whose())
    }
}

fn pool(pool: &PoolReport, out: &mut impl Write) -> fmt::Result {
    let about = About { origin: &pool.origin, title: pool.title() };
    about.findings(&pool.problems, pool.untold, &pool.warnings, out)?;
    pool.nodes.as_ref().map_or(Ok(()), |nodes| fit(nodes, &about.start(), out))
}

fn fit(fit: &Fit, whose: &str, out: &mut impl Write) -> fmt::Result {
    let Fit { selected, served, .. } = fit;
    let room = number(fit.room);
    let addresses = number(fit.addresses);
    line(
        out,
        &format!(
            "{whose}: {served} of {} fit, {room} at most; their pods have {addresses} addresses",
            counted(*selected, "node", "nodes")
        ),
    )?;
    let Some(plan) = &fit.plan else { return Ok(()) };
    let width = plan.iter().map(|share| share.node.len()).max().unwrap_or_default();
    for Share { node, block, gateway, addresses } in plan {
        let addresses = number(*addresses);
        let gateway = gateway.as_ref().map_or_else(String::new, |gateway| format!(", gateway {gateway}"));
        line(out, &format!("  {node:width$}  {block}{gateway}, {addresses} for pods"))?;
    }
    for node in &fit.unserved {
        line(out, &format!("  {node:width$}  no block is left"))?;
    }
    Ok(())
}

/// One line about all objects.
pub(super) fn summary(report: &Report) -> String {
    let invalid = report.pools.iter().filter(|pool| !pool.is_valid()).count();
    let errors = report.pools.iter().map(|pool| pool.problems.len() + pool.untold).sum();
    let warnings = report.pools.iter().map(|pool| pool.warnings.len()).sum();
    let mut parts =
        vec![of_kind(&counted(report.pools.len(), "pool", "pools"), report.pools.len(), invalid, errors, warnings)];
    if !report.networks.is_empty() {
        let invalid = report.networks.iter().filter(|network| !network.problems.is_empty()).count();
        let errors = report.networks.iter().map(|network| network.problems.len()).sum();
        let warnings = report.networks.iter().map(|network| network.warnings.len()).sum();
        let networks = counted(report.networks.len(), "network", "networks");
        parts.push(of_kind(&networks, report.networks.len(), invalid, errors, warnings));
    }
    if !report.strays.is_empty() {
        parts.push(format!("{} not recognized", counted(report.strays.len(), "document", "documents")));
    }
    if report.skipped > 0 {
        parts.push(format!("{} of other kinds skipped", counted(report.skipped, "object", "objects")));
    }
    if report.warnings_are_errors {
        parts.push("warnings count as errors".to_owned());
    }
    parts.join("; ")
}

fn of_kind(all: &str, count: usize, invalid: usize, errors: usize, warnings: usize) -> String {
    let counts = [(errors, "error", "errors"), (warnings, "warning", "warnings")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, many)| counted(n, one, many)).collect();
    let counts = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    format!("{all}: {} valid, {invalid} invalid{counts}", count - invalid)
}

/// Formats a number. `i64::MAX` stands for all larger numbers.
fn number(number: i64) -> String {
    if number == i64::MAX { "more than 9,000,000,000,000,000,000".to_owned() } else { number.to_string() }
}

fn which(origin: &Origin) -> String {
    let item = origin.item.map_or_else(String::new, |item| format!(" item {item}"));
    format!("document {}{item}", origin.document)
}

/// Writes `text` as one line, control characters escaped.
pub(super) fn line(out: &mut impl Write, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() { write!(out, "{}", c.escape_default())? } else { out.write_char(c)? }
    }
    out.write_char('\n')
}
