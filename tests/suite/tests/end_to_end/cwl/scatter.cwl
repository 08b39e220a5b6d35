# One job for each word, and one that joins what they wrote.
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {words: "string[]"}
outputs:
  text: {type: File, outputSource: join/text}
steps:
  write:
    in: {word: words}
    scatter: word
    out: [text]
    run: words.cwl
  join:
    in: {texts: write/text}
    out: [text]
    run: join.cwl
