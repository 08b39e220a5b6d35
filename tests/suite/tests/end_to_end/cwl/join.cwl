cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
baseCommand: cat
inputs:
  texts: {type: "File[]", inputBinding: {position: 1}}
outputs:
  text: {type: stdout}
stdout: words.txt
