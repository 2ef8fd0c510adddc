/* workflow {
    "name": "review",
    "description": "Reviews each file of a list, and summarises",
    "whenToUse": "When several files are to be reviewed independently of each other.",
    "phases": [{"title": "Review"}, {"title": "Summary"}]
} */
const files = args?.files ?? ['lib.rs', 'main.rs', 'config.rs'];

phase('Review');
const reviews = await pipeline(
    files,
    (file) => agent(`Review ${file}. Name its worst fault in one sentence.`, { label: file, phase: 'Review' }),
    (review, file) => ({ file, review }),
);
const failed = reviews.filter((review) => review === null || review.review === null).length;
log(`${reviews.length - failed} of ${files.length} files were reviewed`);

phase('Summary');
const summary = await agent(`Summarise these reviews in two sentences:\n${JSON.stringify(reviews)}`, {
    label: 'summary',
    phase: 'Summary',
});
return { reviews, summary };
