//! Lookup table of prompts and partials. There may be a hundred thousand, and a moved label must take effect at once.
//! Therefore the rows are published in parts. An update of one part copies neither the rows nor the names of the other
//! parts.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::prompts::saved::{SavedPartial, SavedPrompt};

/// A row that callers name by its id or slug.
trait NamedRow {
    fn id(&self) -> &Arc<str>;
    fn slug(&self) -> &Arc<str>;
    fn workspace(&self) -> &Arc<str>;
    fn set_workspace(&mut self, workspace: Arc<str>);

    fn has_names_of(&self, other: &Self) -> bool {
        self.id() == other.id() && self.slug() == other.slug() && self.workspace() == other.workspace()
    }
}

macro_rules! impl_named_row {
    ($type:ty) => {
        impl NamedRow for $type {
            fn id(&self) -> &Arc<str> {
                &self.id
            }

            fn slug(&self) -> &Arc<str> {
                &self.slug
            }

            fn workspace(&self) -> &Arc<str> {
                &self.workspace
            }

            fn set_workspace(&mut self, workspace: Arc<str>) {
                self.workspace = workspace;
            }
        }
    };
}

impl_named_row!(SavedPrompt);
impl_named_row!(SavedPartial);

/// Position of a row: the index of its part in the table, and its own index in that part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowPosition {
    part: u32,
    row: u32,
}

/// Positions by id and slug.
type Positions = HashMap<Arc<str>, RowPosition>;

#[derive(Debug)]
struct PartRows<T> {
    part: Arc<str>,
    /// Sorted by id, so that a row keeps its position when another one changes.
    rows: Arc<[Arc<T>]>,
}

// Not derived, so that `T` need not be `Clone`.
impl<T> Clone for PartRows<T> {
    fn clone(&self) -> Self {
        Self { part: Arc::clone(&self.part), rows: Arc::clone(&self.rows) }
    }
}

#[derive(Debug)]
struct NamedTable<T> {
    parts: Vec<PartRows<T>>,
    /// Positions by workspace. Copied only when a row is added, removed or renamed.
    names: Arc<HashMap<Arc<str>, Positions>>,
}

impl<T> Clone for NamedTable<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), names: Arc::clone(&self.names) }
    }
}

impl<T> Default for NamedTable<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), names: Arc::default() }
    }
}

impl<T: NamedRow> NamedTable<T> {
    fn find(&self, workspace: &str, name: &str) -> Option<&Arc<T>> {
        let position = self.names.get(workspace)?.get(name)?;
        self.parts.get(position.part as usize)?.rows.get(position.row as usize)
    }

    fn row_count(&self) -> usize {
        self.parts.iter().map(|part| part.rows.len()).sum()
    }

    /// Replaces the rows of a published part.
    fn replace(&mut self, part: &Arc<str>, mut rows: Vec<T>) {
        rows.sort_unstable_by(|left, right| left.id().cmp(right.id()));
        let index = self.parts.iter().position(|known| known.part == *part).unwrap_or_else(|| {
            self.parts.push(PartRows { part: Arc::clone(part), rows: Arc::default() });
            self.parts.len() - 1
        });
        let before = Arc::clone(&self.parts[index].rows);
        let has_same_names =
            before.len() == rows.len() && before.iter().zip(&rows).all(|(old, new)| old.has_names_of(new));
        if has_same_names {
            // Shares the workspace strings of the old rows, because `self.names` contains these.
            for (row, old) in rows.iter_mut().zip(before.iter()) {
                row.set_workspace(Arc::clone(old.workspace()));
            }
        } else {
            self.rename(index, &before, &mut rows);
        }
        self.parts[index].rows = rows.into_iter().map(Arc::new).collect();
    }

    /// Replaces the names of the rows of a published part.
    fn rename(&mut self, index: usize, before: &[Arc<T>], rows: &mut [T]) {
        let part = index as u32;
        let names = Arc::make_mut(&mut self.names);
        for row in before {
            if let Some(of_workspace) = names.get_mut(row.workspace()) {
                for name in [row.id(), row.slug()] {
                    // By now, the name may belong to a row of another part.
                    if of_workspace.get(name).is_some_and(|position| position.part == part) {
                        of_workspace.remove(name);
                    }
                }
            }
        }
        names.retain(|_, of_workspace| !of_workspace.is_empty());
        for (number, row) in rows.iter_mut().enumerate() {
            if let Some((workspace, _)) = names.get_key_value(row.workspace()) {
                row.set_workspace(Arc::clone(workspace));
            }
            let of_workspace = names.entry(Arc::clone(row.workspace())).or_default();
            for name in [row.id(), row.slug()] {
                of_workspace.insert(Arc::clone(name), RowPosition { part, row: number as u32 });
            }
        }
    }
}

/// Prompts that other workspaces may use, by id and slug. Several workspaces may have the same slug.
type SharedPrompts = HashMap<Arc<str>, Vec<Arc<SavedPrompt>>>;

#[derive(Debug, Default, Clone)]
pub(super) struct PromptTable {
    prompts: NamedTable<SavedPrompt>,
    partials: NamedTable<SavedPartial>,
    shared: Arc<SharedPrompts>,
}

impl PromptTable {
    /// Returns the number of prompts.
    pub fn len(&self) -> usize {
        self.prompts.row_count()
    }

    /// Replaces the prompts of a published part.
    pub fn replace_prompts(&mut self, part: &Arc<str>, prompts: Vec<SavedPrompt>) {
        let shared_before = self.shared_in(part);
        self.prompts.replace(part, prompts);
        let shared = self.shared_in(part);
        if shared_before.is_empty() && shared.is_empty() {
            return;
        }
        let removed: HashSet<Arc<str>> = shared_before.iter().map(|prompt| Arc::clone(&prompt.id)).collect();
        let table = Arc::make_mut(&mut self.shared);
        table.retain(|_, prompts| {
            prompts.retain(|prompt| !removed.contains(&prompt.id));
            !prompts.is_empty()
        });
        for prompt in shared {
            for name in [&prompt.id, &prompt.slug] {
                table.entry(Arc::clone(name)).or_default().push(Arc::clone(&prompt));
            }
        }
    }

    /// Replaces the partials of a published part.
    pub fn replace_partials(&mut self, part: &Arc<str>, partials: Vec<SavedPartial>) {
        self.partials.replace(part, partials);
    }

    /// Returns a prompt of a workspace, by id or slug.
    pub fn find_prompt(&self, workspace: &str, name: &str) -> Option<&Arc<SavedPrompt>> {
        self.prompts.find(workspace, name)
    }

    /// Returns a partial of a workspace, by id or slug.
    pub fn find_partial(&self, workspace: &str, name: &str) -> Option<&SavedPartial> {
        self.partials.find(workspace, name).map(|partial| &**partial)
    }

    /// Returns the prompts with this id or slug that other workspaces share with this one.
    pub fn find_shared_prompts(&self, workspace: &str, name: &str) -> impl Iterator<Item = &Arc<SavedPrompt>> {
        let prompts = self.shared.get(name).into_iter().flatten();
        prompts.filter(move |prompt| prompt.is_shared_with(workspace))
    }

    fn shared_in(&self, part: &Arc<str>) -> Vec<Arc<SavedPrompt>> {
        let rows = self.prompts.parts.iter().filter(|known| known.part == *part).flat_map(|known| known.rows.iter());
        rows.filter(|prompt| prompt.shared_with.is_some()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompts::saved::PublishedPrompt;

    fn prompt(id: &str, slug: &str, workspace: &str, shared: &str) -> SavedPrompt {
        let json = format!(
            r#"{{"id": "{id}", "slug": "{slug}", "workspace": "{workspace}", "latest": 1, "shared_with": {shared},
                "versions": []}}"#
        );
        serde_json::from_str::<PublishedPrompt<'_>>(&json).unwrap().into_saved()
    }

    fn found<'t>(table: &'t PromptTable, workspace: &str, name: &str) -> Option<&'t str> {
        table.find_prompt(workspace, name).map(|prompt| &*prompt.id)
    }

    fn shared<'t>(table: &'t PromptTable, name: &str) -> Vec<&'t str> {
        table.find_shared_prompts("other", name).map(|prompt| &*prompt.id).collect()
    }

    #[test]
    fn rows_are_found_by_id_and_slug_of_their_workspace() {
        let (first, second) = (Arc::from("first"), Arc::from("second"));
        let mut table = PromptTable::default();
        table.replace_prompts(&first, vec![prompt("b", "greeting", "w", "null"), prompt("a", "other", "w", "null")]);
        table.replace_prompts(&second, vec![prompt("c", "greeting", "v", "null")]);
        assert_eq!([found(&table, "w", "a"), found(&table, "w", "other")], [Some("a"); 2]);
        assert_eq!([found(&table, "w", "greeting"), found(&table, "v", "greeting")], [Some("b"), Some("c")]);
        assert_eq!([found(&table, "w", "c"), found(&table, "x", "a")], [None; 2]);
        assert_eq!(table.len(), 3);
        let workspaces: Vec<_> = ["a", "b"].map(|id| Arc::clone(&table.find_prompt("w", id).unwrap().workspace)).into();
        assert!(Arc::ptr_eq(&workspaces[0], &workspaces[1]));
    }

    #[test]
    fn update_without_new_names_shares_the_names() {
        let part = Arc::from("one");
        let mut table = PromptTable::default();
        table.replace_prompts(&part, vec![prompt("a", "s", "w", "null"), prompt("b", "t", "w", "null")]);
        let old = table.clone();
        table.replace_prompts(&part, vec![prompt("b", "t", "w", "\"*\""), prompt("a", "s", "w", "null")]);
        assert!(Arc::ptr_eq(&old.prompts.names, &table.prompts.names));
        assert_eq!((shared(&table, "t"), shared(&old, "t")), (vec!["b"], vec![]));
        table.replace_prompts(&part, vec![prompt("a", "renamed", "w", "null")]);
        assert_eq!([found(&table, "w", "s"), found(&table, "w", "b"), found(&table, "w", "t")], [None; 3]);
        assert_eq!([found(&table, "w", "renamed"), found(&old, "w", "t")], [Some("a"), Some("b")]);
        assert!(shared(&table, "t").is_empty());
    }

    #[test]
    fn slug_may_move_to_a_row_of_another_part() {
        let (first, second) = (Arc::from("first"), Arc::from("second"));
        for is_first in [true, false] {
            let mut table = PromptTable::default();
            table.replace_prompts(&first, vec![prompt("a", "s", "w", "null")]);
            table.replace_prompts(&second, vec![prompt("b", "t", "w", "null")]);
            let change = |table: &mut PromptTable, is_one: bool| {
                if is_one {
                    table.replace_prompts(&first, vec![prompt("a", "u", "w", "null")]);
                } else {
                    table.replace_prompts(&second, vec![prompt("b", "s", "w", "null")]);
                }
            };
            change(&mut table, is_first);
            change(&mut table, !is_first);
            assert_eq!([found(&table, "w", "s"), found(&table, "w", "u")], [Some("b"), Some("a")]);
            table.replace_prompts(&second, vec![]);
            assert_eq!([found(&table, "w", "s"), found(&table, "w", "b")], [None; 2]);
            assert_eq!(found(&table, "w", "a"), Some("a"));
        }
    }
}
