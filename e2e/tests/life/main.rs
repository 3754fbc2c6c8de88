//! The life of a block with real processes: what pods hold is given to nobody else, whatever is deleted, relabelled, edited
//! or lost, and comes free by itself when the pods give it back. Two operators, of which one leads; agents on nodes of their
//! own; pods below a real CNI plugin. Tests share a control plane and keep apart by namespace, by node names and by a label
//! that every pool of theirs selects; those that take the API server away have one of their own.

#[cfg(test)]
#[path = "../cluster/api.rs"]
#[expect(dead_code, reason = "what other tests say to the API server")]
mod api;
#[cfg(test)]
mod edits;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod leaving;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod pools;
#[cfg(test)]
mod records;
#[cfg(test)]
mod replacements;
#[cfg(test)]
mod restores;
#[cfg(test)]
mod site;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod stores;
#[cfg(test)]
mod unaffected;
#[cfg(test)]
mod witness;
