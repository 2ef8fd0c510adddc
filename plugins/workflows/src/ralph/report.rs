//! What an agent of a loop reports.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What one agent of the loop hands to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// How the objective stands.
    pub status: ReportStatus,
    /// What was done.
    pub summary: String,
    /// What shows it.
    pub evidence: Vec<String>,
    /// What is to be done next.
    pub next_steps: Vec<String>,
    /// What is in the way.
    pub blocker: String,
}

/// How the objective stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportStatus {
    /// There is more to do.
    Continue,
    /// It is reached.
    Complete,
    /// It cannot be reached without help.
    Blocked,
}

impl Report {
    /// The schema of a report: all fields, and no others.
    pub(crate) fn schema() -> Value {
        let texts = json!({"type": "array", "items": {"type": "string"}});
        json!({
            "type": "object",
            "properties": {
                "status": {"type": "string", "enum": ["continue", "complete", "blocked"]},
                "summary": {"type": "string"},
                "evidence": texts,
                "nextSteps": texts,
                "blocker": {"type": "string"},
            },
            "required": ["status", "summary", "evidence", "nextSteps", "blocker"],
            "additionalProperties": false,
        })
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub(crate) fn read(value: &Value, chars_max: usize) -> Result<Self, String> {
        let report = Self::deserialize(value).map_err(|fault| fault.to_string())?;
        let mut faults = Vec::new();
        let mut must = |kept: bool, rule: &str| {
            if !kept {
                faults.push(rule.to_owned());
            }
        };
        let said = |text: &String| !text.trim().is_empty();
        must(said(&report.summary), "summary must not be empty");
        must(report.evidence.iter().all(said), "evidence must not hold empty texts");
        must(report.next_steps.iter().all(said), "nextSteps must not hold empty texts");
        let unblocked = report.blocker.is_empty();
        match report.status {
            ReportStatus::Continue => {
                must(!report.next_steps.is_empty(), "status continue needs nextSteps");
                must(unblocked, "status continue takes no blocker");
            }
            ReportStatus::Complete => {
                must(!report.evidence.is_empty(), "status complete needs evidence");
                must(report.next_steps.is_empty(), "status complete takes no nextSteps");
                must(unblocked, "status complete takes no blocker");
            }
            ReportStatus::Blocked => must(said(&report.blocker), "status blocked needs a blocker"),
        }
        let chars = value.to_string().chars().count();
        let short = format!("the report has {chars} characters; {chars_max} are allowed");
        must(chars <= chars_max, &short);
        match faults.is_empty() {
            true => Ok(report),
            false => Err(faults.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(status: &str, evidence: &[&str], next: &[&str], blocker: &str) -> Value {
        json!({"status": status, "summary": "did it", "evidence": evidence, "nextSteps": next,
            "blocker": blocker})
    }

    #[test]
    fn a_report_says_what_its_status_needs_and_no_more() {
        let kept = [
            report("continue", &[], &["go on"], ""),
            report("complete", &["the tests pass"], &[], ""),
            report("blocked", &[], &[], "no key"),
        ];
        for value in &kept {
            assert_eq!(serde_json::to_value(Report::read(value, 1_000).unwrap()).unwrap(), *value);
        }
        for (value, fault) in [
            (report("continue", &[], &[], ""), "needs nextSteps"),
            (report("continue", &[], &["x"], "y"), "takes no blocker"),
            (report("complete", &[], &[], ""), "needs evidence"),
            (report("complete", &["x"], &["y"], ""), "takes no nextSteps"),
            (report("blocked", &[], &[], " "), "needs a blocker"),
            (report("continue", &[" "], &["x"], ""), "evidence must not hold"),
            (report("done", &[], &[], ""), "unknown variant"),
            (json!({"status": "continue"}), "missing field"),
        ] {
            let found = Report::read(&value, 1_000).unwrap_err();
            assert!(found.contains(fault), "{found:?} has no {fault:?}");
        }
        assert!(Report::read(&kept[0], 10).unwrap_err().contains("characters"));
    }
}
