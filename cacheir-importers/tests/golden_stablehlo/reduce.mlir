module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xi32>, %arg2: tensor<2x3xi1>) -> (tensor<2xf32>, tensor<3xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi1>, tensor<2xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_1 = stablehlo.constant dense<2.5> : tensor<f32>
    %c = stablehlo.constant dense<-2147483648> : tensor<i32>
    %c_2 = stablehlo.constant dense<true> : tensor<i1>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %1 = stablehlo.reduce(%arg0 init: %cst_0) across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
     reducer(%arg3: tensor<f32>, %arg4: tensor<f32>)  {
      %9 = stablehlo.maximum %arg4, %arg3 : tensor<f32>
      stablehlo.return %9 : tensor<f32>
     }
    %2 = "stablehlo.reduce"(%arg0, %cst_1) <{dimensions = array<i64: 0, 1>}> ({
     ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %9 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%9) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.reduce(%arg1 init: %c) applies stablehlo.maximum across dimensions = [1] : (tensor<2x3xi32>, tensor<i32>) -> tensor<2xi32>
    %4 = stablehlo.reduce(%arg2 init: %c_2) applies stablehlo.and across dimensions = [1] : (tensor<2x3xi1>, tensor<i1>) -> tensor<2xi1>
    %5 = stablehlo.reduce(%arg0 init: %cst_1) applies stablehlo.minimum across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    return %0, %1, %2, %3, %4, %5 : tensor<2xf32>, tensor<3xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi1>, tensor<2xf32>
  }
}
