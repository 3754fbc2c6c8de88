//! A report as text. Each error is a line that begins with its place, as compilers write it, so that editors find the place.
//! Control characters of a manifest never reach a terminal.

use std::fmt::{self, Write};

use ipam_core::words::counted;

use super::plan::{Fit, Share};
use super::report::{Origin, PoolReport, Report};

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
    summary(report, out)
}

fn pool(pool: &PoolReport, out: &mut impl Write) -> fmt::Result {
    let file = &pool.origin.file;
    let name =
        if pool.name.is_empty() { "without a name".to_owned() } else { format!("{}/{}", pool.namespace, pool.name) };
    let whose = format!("{}, {} {name}", which(&pool.origin), pool.kind);
    for problem in pool.problems.iter().take(MAX_LINES) {
        line(out, &format!("{file}:{}: {whose}: {}: {}", problem.place, problem.field, problem.message))?;
    }
    let untold = pool.untold + pool.problems.len().saturating_sub(MAX_LINES);
    if untold > 0 {
        line(
            out,
            &format!("{file}:{}: {whose}: and {}", pool.origin.place, counted(untold, "more mistake", "more mistakes")),
        )?;
    }
    for warning in pool.warnings.iter().take(MAX_LINES) {
        line(out, &format!("{file}:{}: {whose}: warning: {}: {}", warning.place, warning.field, warning.message))?;
    }
    if pool.warnings.len() > MAX_LINES {
        let more = counted(pool.warnings.len() - MAX_LINES, "more warning", "more warnings");
        line(out, &format!("{file}:{}: {whose}: and {more}", pool.origin.place))?;
    }
    pool.nodes.as_ref().map_or(Ok(()), |nodes| fit(nodes, &format!("{file}:{}: {whose}", pool.origin.place), out))
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

fn summary(report: &Report, out: &mut impl Write) -> fmt::Result {
    let refused = report.pools.iter().filter(|pool| !pool.is_fine()).count();
    let problems: usize = report.pools.iter().map(|pool| pool.problems.len() + pool.untold).sum();
    let warnings: usize = report.pools.iter().map(|pool| pool.warnings.len()).sum();
    let mut text = format!(
        "{}: {} fine, {refused} refused",
        counted(report.pools.len(), "pool", "pools"),
        report.pools.len() - refused
    );
    let counts = [(problems, "mistake", "mistakes"), (warnings, "warning", "warnings")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, many)| counted(n, one, many)).collect();
    if !counts.is_empty() {
        write!(text, " ({})", counts.join(", "))?;
    }
    if !report.strays.is_empty() {
        write!(text, "; {} not understood", counted(report.strays.len(), "document", "documents"))?;
    }
    if report.skipped > 0 {
        write!(text, "; {} of other kinds skipped", counted(report.skipped, "object", "objects"))?;
    }
    line(out, &text)
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
fn line(out: &mut impl Write, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() { write!(out, "{}", c.escape_default())? } else { out.write_char(c)? }
    }
    out.write_char('\n')
}
