# A file in the working directory, and a variable.
cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
  InitialWorkDirRequirement:
    listing:
      - {entryname: note.txt, entry: '$(inputs.words[0])'}
  EnvVarRequirement:
    envDef: {WORD: '$(inputs.words[1])'}
baseCommand: [sh, -c, 'cat note.txt; echo; echo "$WORD"']
inputs: {words: "string[]"}
outputs:
  text: {type: stdout}
stdout: both.txt
