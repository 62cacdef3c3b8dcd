//! Check of the language of a text.

use serde::Deserialize;
use serde_json::{Value, json};
use whatlang::Lang;

use crate::guardrails::{
    check::{Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, excerpt, read_parameters},
    text_scope::TextScope,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.language",
    alias: None,
    name: "Language",
    description: "passes if the text is in one of some languages",
    stages: Stages::Both,
    secrets: &[],
    schema: r##"{"required":["language"],"properties":{"language":{"description":"code or codes, such as `eng_Latn`","oneOf":[{"$ref":"#/$defs/code"},{"type":"array","minItems":1,"items":{"$ref":"#/$defs/code"}}]}},"$defs":{"code":{"type":"string","pattern":"^[a-z]{3}_[A-Z][a-z]{3}$"}}}"##,
    shared: &["not", "scope", "timeout"],
    compile: InLanguage::compile,
}];

/// Maximum number of characters from which the language is detected. More would not make the result more certain.
const MAX_LETTERS: usize = 1000;

/// Languages that are detected, with the code of each in the FLORES lists.
const LANGUAGES: &[(Lang, &str)] = &[
    (Lang::Afr, "afr_Latn"),
    (Lang::Amh, "amh_Ethi"),
    (Lang::Ara, "arb_Arab"),
    (Lang::Aze, "azj_Latn"),
    (Lang::Bel, "bel_Cyrl"),
    (Lang::Ben, "ben_Beng"),
    (Lang::Bul, "bul_Cyrl"),
    (Lang::Cat, "cat_Latn"),
    (Lang::Ces, "ces_Latn"),
    (Lang::Cmn, "zho_Hans"),
    (Lang::Cym, "cym_Latn"),
    (Lang::Dan, "dan_Latn"),
    (Lang::Deu, "deu_Latn"),
    (Lang::Ell, "ell_Grek"),
    (Lang::Eng, "eng_Latn"),
    (Lang::Epo, "epo_Latn"),
    (Lang::Est, "est_Latn"),
    (Lang::Fin, "fin_Latn"),
    (Lang::Fra, "fra_Latn"),
    (Lang::Guj, "guj_Gujr"),
    (Lang::Heb, "heb_Hebr"),
    (Lang::Hin, "hin_Deva"),
    (Lang::Hrv, "hrv_Latn"),
    (Lang::Hun, "hun_Latn"),
    (Lang::Hye, "hye_Armn"),
    (Lang::Ind, "ind_Latn"),
    (Lang::Ita, "ita_Latn"),
    (Lang::Jav, "jav_Latn"),
    (Lang::Jpn, "jpn_Jpan"),
    (Lang::Kan, "kan_Knda"),
    (Lang::Kat, "kat_Geor"),
    (Lang::Khm, "khm_Khmr"),
    (Lang::Kor, "kor_Hang"),
    (Lang::Lav, "lvs_Latn"),
    (Lang::Lit, "lit_Latn"),
    (Lang::Mal, "mal_Mlym"),
    (Lang::Mar, "mar_Deva"),
    (Lang::Mkd, "mkd_Cyrl"),
    (Lang::Mya, "mya_Mymr"),
    (Lang::Nep, "npi_Deva"),
    (Lang::Nld, "nld_Latn"),
    (Lang::Nob, "nob_Latn"),
    (Lang::Ori, "ory_Orya"),
    (Lang::Pan, "pan_Guru"),
    (Lang::Pes, "pes_Arab"),
    (Lang::Pol, "pol_Latn"),
    (Lang::Por, "por_Latn"),
    (Lang::Ron, "ron_Latn"),
    (Lang::Rus, "rus_Cyrl"),
    (Lang::Sin, "sin_Sinh"),
    (Lang::Slk, "slk_Latn"),
    (Lang::Slv, "slv_Latn"),
    (Lang::Sna, "sna_Latn"),
    (Lang::Spa, "spa_Latn"),
    (Lang::Srp, "srp_Cyrl"),
    (Lang::Swe, "swe_Latn"),
    (Lang::Tam, "tam_Taml"),
    (Lang::Tel, "tel_Telu"),
    (Lang::Tgl, "tgl_Latn"),
    (Lang::Tha, "tha_Thai"),
    (Lang::Tuk, "tuk_Latn"),
    (Lang::Tur, "tur_Latn"),
    (Lang::Ukr, "ukr_Cyrl"),
    (Lang::Urd, "urd_Arab"),
    (Lang::Uzb, "uzn_Latn"),
    (Lang::Vie, "vie_Latn"),
    (Lang::Yid, "ydd_Hebr"),
    (Lang::Zul, "zul_Latn"),
];

/// Other codes that clients use for the same languages.
const OTHER_CODES: &[(&str, &str)] =
    &[("fas_Arab", "pes_Arab"), ("zho_Hant", "zho_Hans"), ("ara_Arab", "arb_Arab"), ("lav_Latn", "lvs_Latn")];

#[derive(Debug)]
struct InLanguage {
    codes: Vec<String>,
    not: bool,
    scope: TextScope,
}

impl InLanguage {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Codes {
            One(String),
            Several(Vec<String>),
        }
        #[derive(Deserialize)]
        struct InLanguageParameters {
            language: Codes,
            #[serde(default)]
            not: bool,
            #[serde(default)]
            scope: TextScope,
        }
        let InLanguageParameters { language, not, scope } = read_parameters(parameters)?;
        let codes = match language {
            Codes::One(code) => vec![code],
            Codes::Several(codes) => codes,
        };
        let standard = |code: String| {
            OTHER_CODES.iter().find(|(other, _)| *other == code).map_or(code, |(_, code)| (*code).to_owned())
        };
        let codes: Vec<String> = codes.into_iter().map(standard).collect();
        if let Some(unknown) = codes.iter().find(|code| !LANGUAGES.iter().any(|(_, known)| known == code)) {
            let known: Vec<_> = LANGUAGES.iter().map(|(_, code)| *code).collect();
            let message = format!("`{unknown}` cannot be detected; allowed are {}", known.join(", "));
            return Err((".language".to_owned(), message));
        }
        Ok(Box::new(Self { codes, not, scope }))
    }
}

/// Returns the code of the language in which a text is written, and the confidence between 0 and 1.
pub(super) fn detect(text: &str) -> Option<(&'static str, f64)> {
    let end = text.char_indices().nth(MAX_LETTERS).map_or(text.len(), |(end, _)| end);
    let detected = whatlang::detect(&text[..end])?;
    LANGUAGES.iter().find(|(known, _)| *known == detected.lang()).map(|(_, code)| (*code, detected.confidence()))
}

impl Check for InLanguage {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.scope, true);
        let Some((detected, _)) = detect(&selected.text) else {
            return Err(CheckError::new("the text has too few letters to detect its language"));
        };
        let verdict = self.codes.iter().any(|code| code == detected) != self.not;
        let explanation = format!("the text is in {detected}");
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "detectedLanguage": detected,
            "allowedLanguages": self.codes, "textExcerpt": excerpt(&selected.text)});
        Ok(CheckOutcome::new(verdict, data))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Stage, compile_check,
            tests::{run_on, verdict},
        },
        *,
    };
    use crate::parse::document_reader::Strictness;

    /// Texts of 40 letters in 59 languages, after the code of each.
    const SAMPLES: &[u8] = include_bytes!("../data/language_samples.tsv.gz");

    #[test]
    fn forty_letters_suffice_for_97_of_100_texts() {
        let samples = std::io::read_to_string(flate2::read::GzDecoder::new(SAMPLES)).unwrap();
        let texts: Vec<_> = samples.lines().filter_map(|line| line.split_once('\t')).collect();
        let wrong: Vec<_> =
            texts.iter().filter(|(code, text)| detect(text).map(|(detected, _)| detected) != Some(*code)).collect();
        let mut by_code = std::collections::BTreeMap::<_, usize>::new();
        for (code, _) in &wrong {
            *by_code.entry(code).or_default() += 1;
        }
        assert!(wrong.len() * 100 <= texts.len() * 3, "{} of {}: {by_code:?}", wrong.len(), texts.len());
    }

    #[test]
    fn languages_are_detected() {
        let german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann weiter.";
        assert!(verdict("gateway.language", json!({"language": "deu_Latn"}), german));
        assert!(!verdict("gateway.language", json!({"language": ["eng_Latn", "fra_Latn"]}), german));
        assert!(run_on("gateway.language", json!({"language": "deu_Latn"}), Stage::Input, "123").is_err());
        let unknown = compile_check("gateway.language", &json!({"language": "xxx_Latn"}), "$", Strictness::Lenient);
        assert_eq!(unknown.unwrap_err()[0].path, "$.parameters.language");
    }
}
