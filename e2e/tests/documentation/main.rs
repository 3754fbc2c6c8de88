//! The pages for users: what they say is plain, true, and can be found.

mod pages;
mod prose;
