//! Suggestions for misspelt names: "did you mean". Names come from clients, so only short ones are compared.

/// Maximum bytes of a name that is compared. The work grows with the product of two lengths.
const MAX_NAME_BYTES: usize = 64;

/// Returns the candidate that a misspelt name most likely stands for; `None` if none is similar.
pub fn find_similar<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return None;
    }
    let name = name.to_lowercase();
    let distances = candidates.iter().map(|candidate| (edit_distance(&name, candidate), *candidate));
    let (distance, candidate) = distances.min_by_key(|(distance, _)| *distance)?;
    // One mistake in a short word; up to a quarter of a long one.
    (distance <= candidate.len().div_ceil(4)).then_some(candidate)
}

/// Returns how many characters have to be inserted, removed or replaced to turn one name into the other.
fn edit_distance(first: &str, second: &str) -> usize {
    let mut row: Vec<usize> = (0..=second.chars().count()).collect();
    for (line, left) in first.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, right) in second.chars().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_recognised() {
        let known = ["variables", "hyperparameters"];
        for name in ["variabels", "Variables", "variable", "hyper_parameters", "hyperparams"] {
            assert!(find_similar(name, &known).is_some(), "{name}");
        }
        for name in ["", "temperature", "parameters", "user", "stream", "x".repeat(100).as_str()] {
            assert_eq!(find_similar(name, &known), None, "{name}");
        }
        assert_eq!(find_similar("rol", &["role", "content"]), Some("role"));
        assert_eq!(find_similar("name", &["role", "content"]), None);
    }
}
