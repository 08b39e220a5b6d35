cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
baseCommand: echo
inputs:
  word: {type: string, inputBinding: {position: 1}}
outputs:
  text: {type: stdout}
stdout: word.txt
