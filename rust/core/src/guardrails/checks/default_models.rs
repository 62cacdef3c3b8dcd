//! Models that the operator sets for checks which need a model and name none.

use std::sync::OnceLock;

/// Kind of check for which the operator can set a default model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelPurpose {
    Moderation,
    PersonalData,
}

impl ModelPurpose {
    /// Returns the name of the setting.
    fn setting(self) -> &'static str {
        match self {
            Self::Moderation => "guardrails.moderation_model",
            Self::PersonalData => "guardrails.pii_model",
        }
    }
}

/// Default models, each as `@slug/model`. A slug names a saved provider of the workspace whose request is checked.
#[derive(Debug, Default)]
pub struct DefaultModels {
    pub moderation: Option<String>,
    pub personal_data: Option<String>,
}

static DEFAULT_MODELS: OnceLock<DefaultModels> = OnceLock::new();

impl DefaultModels {
    /// Returns default models; an empty string stands for none.
    ///
    /// # Errors
    /// If a model has another form. The message contains the name of its setting.
    pub fn parse(moderation: &str, personal_data: &str) -> Result<Self, String> {
        let parse = |model: &str, purpose: ModelPurpose| {
            let is_valid = model
                .strip_prefix('@')
                .and_then(|rest| rest.split_once('/'))
                .is_some_and(|(slug, name)| !slug.is_empty() && !name.is_empty() && !slug.contains(' '));
            match model {
                "" => Ok(None),
                model if is_valid => Ok(Some(model.to_owned())),
                model => Err(format!(
                    "{} is `{model}`; expected a model such as `@my-openai/gpt-4o-mini`",
                    purpose.setting()
                )),
            }
        };
        Ok(Self {
            moderation: parse(moderation, ModelPurpose::Moderation)?,
            personal_data: parse(personal_data, ModelPurpose::PersonalData)?,
        })
    }

    fn find(&self, purpose: ModelPurpose) -> Option<&str> {
        match purpose {
            ModelPurpose::Moderation => self.moderation.as_deref(),
            ModelPurpose::PersonalData => self.personal_data.as_deref(),
        }
    }

    /// Returns the model of a check: its own, or the default.
    ///
    /// # Errors
    /// If there is neither. The error has the path of the parameter, and a message.
    fn choose(&self, own: Option<String>, purpose: ModelPurpose) -> Result<String, (String, String)> {
        let missing = || {
            let message = format!("is required, because the setting `{}` has no model", purpose.setting());
            (".model".to_owned(), message)
        };
        own.or_else(|| self.find(purpose).map(ToOwned::to_owned)).ok_or_else(missing)
    }
}

/// Sets the default models. Only the first call counts.
pub fn set_default_models(models: DefaultModels) {
    let _ = DEFAULT_MODELS.set(models);
}

/// Returns the model of a check: its own, or the default of the operator.
///
/// # Errors
/// If there is neither. The error has the path of the parameter, and a message.
pub(super) fn choose_model(own: Option<String>, purpose: ModelPurpose) -> Result<String, (String, String)> {
    match DEFAULT_MODELS.get() {
        Some(models) => models.choose(own, purpose),
        None => DefaultModels::default().choose(own, purpose),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_uses_its_own_model_or_the_default() {
        let models = DefaultModels::parse("@a/m", "").unwrap();
        let own = Some("@b/n".to_owned());
        assert_eq!(models.choose(own.clone(), ModelPurpose::Moderation), Ok("@b/n".to_owned()));
        assert_eq!(models.choose(None, ModelPurpose::Moderation), Ok("@a/m".to_owned()));
        assert_eq!(models.choose(own, ModelPurpose::PersonalData), Ok("@b/n".to_owned()));
        let (path, message) = models.choose(None, ModelPurpose::PersonalData).unwrap_err();
        assert_eq!(path, ".model");
        assert!(message.contains("guardrails.pii_model"), "{message}");
    }

    #[test]
    fn a_default_model_names_a_saved_provider() {
        for model in ["gpt-4o", "@a", "@/m", "@a/", "@a b/m"] {
            let message = DefaultModels::parse("", model).unwrap_err();
            assert!(message.starts_with("guardrails.pii_model is"), "{message}");
        }
    }
}
